"""A program that is forked from a Python that has imported torch cannot tell, nor can whoever started it."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import served
from command import SOURCE, environment, running_in, tell_of_parent, write

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reparenting is Linux's")]

SEES = """
import json, os, sys
before = sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "hasten", "sympy"})
import torch, multiprocessing, random, threading
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "name": __name__, "file": globals().get("__file__"),
    "package": globals().get("__package__"), "path": sys.path, "folder": os.getcwd(), "before": before,
    "variables": dict(os.environ), "told": sorted(open("/proc/self/environ").read().strip("\\0").split("\\0")),
    "words": open("/proc/self/cmdline").read().strip("\\0"), "input": sys.stdin.read(), "parent": os.getppid(),
    "leads": os.getsid(0) == os.getpid(), "threads": threading.active_count(), "torch": torch.get_num_threads(),
    "signals": [str(s) for s in map(__import__("signal").getsignal, (1, 2, 3, 13, 15))],
    "streams": [(s.name, s.encoding, s.errors, s.line_buffering) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "main": multiprocessing.current_process().name, "is_parent": multiprocessing.parent_process() is None,
    "descriptors": sorted(os.listdir("/proc/self/fd"))[:3], "sum": torch.ones(2).sum().item(),
}))
"""


@pytest.fixture
def both(tmp_path):
    """What a program did that was started by a new Python, and one that was forked."""

    def run(*words, **others):
        found = []
        for start in (served.Real, subprocess.Popen):
            settings = {"cwd": tmp_path, "env": environment(), "stdin": subprocess.PIPE, **others}
            process = start([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **settings)
            found.append((process.communicate(b"asked", timeout=60), process.wait()))
        return found

    return run


@pytest.mark.parametrize("new_session", [False, True])
@pytest.mark.parametrize("words", [["sees.py", "-x", "y z"], ["-m", "package.sees", "1"], ["-c", SEES, "1"]])
def test_it_sees_what_a_new_python_would(both, tmp_path, words, new_session):
    (tmp_path / "package").mkdir()
    for path in (tmp_path / "sees.py", tmp_path / "package" / "sees.py"):
        path.write_text(SEES)
    assert served.is_served([sys.executable, *words], environment(), tmp_path)
    ((new, _), code), ((forked, errors), forked_code) = both(*words, start_new_session=new_session)
    assert code == forked_code == 0, errors
    assert json.loads(forked) == json.loads(new)


@pytest.mark.parametrize(
    "ends",
    [
        "sys.exit(3)",
        "sys.exit('no such file')",
        "os._exit(4)",
        "raise ValueError('the data is bad')",
        "raise KeyboardInterrupt",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "import this_module_is_not_there",
        "import atexit, threading, time; atexit.register(print, 'last')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()",
        "class Last:\n    def __del__(self): print('deleted')\nkept = Last()",
        "1 +",
    ],
)
def test_it_ends_as_a_new_python_would(both, tmp_path, ends):
    script = write(tmp_path / "train.py", f"import os, signal, sys\nprint('begun', flush=True)\n{ends}")
    new, forked = both(script)
    assert forked == new


def test_a_script_that_is_not_there_is_refused_in_the_same_words(both):
    new, forked = both("nowhere.py")
    assert forked == new


def test_its_children_are_whatever_it_starts(both, tmp_path):
    source = (
        "import multiprocessing, torch\n"
        "def tell(queue): queue.put(multiprocessing.parent_process() is not None)\n"
        "if __name__ == '__main__':\n"
        "    for way in ('fork', 'spawn'):\n"
        "        context = multiprocessing.get_context(way)\n"
        "        queue = context.SimpleQueue()\n"
        "        child = context.Process(target=tell, args=(queue,))\n"
        "        child.start(); print(way, queue.get()); child.join()\n"
    )
    new, forked = both(write(tmp_path / "train.py", source))
    assert forked == new and forked[0][0] == b"fork True\nspawn True\n"


def test_it_is_signalled_waited_for_and_gone(tmp_path):
    script = write(tmp_path / "train.py", "import time\nprint('begun', flush=True)\ntime.sleep(60)")
    words, settings = (
        [sys.executable, script],
        {"cwd": tmp_path, "stdout": subprocess.PIPE, "start_new_session": True},
    )
    process = subprocess.Popen(words, **settings)
    assert process.stdout.readline() == b"begun\n" and process.poll() is None
    assert psutil.Process(process.pid).parent().pid == os.getpid()
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=10) == -signal.SIGTERM
    process.stdout.close()
    assert running_in(tmp_path) == []


@pytest.mark.parametrize(
    "words, variables",
    [
        (["/usr/bin/python3", "train.py"], {}),
        ([sys.executable, "-X", "importtime", "train.py"], {}),
        ([sys.executable, "-m", "torch.distributed.run", "train.py"], {}),
        ([sys.executable, "-c", "print()"], {}),
        ([sys.executable, "train.py"], {"LD_PRELOAD": "libjemalloc.so"}),
        ([sys.executable, "train.py"], {"OMP_WAIT_POLICY": "passive"}),
        ("python train.py", {}),
    ],
)
def test_what_a_fork_could_not_do_is_started_as_ever(words, variables):
    assert not served.is_served(words, environment() | variables, ".")


def test_a_server_that_is_told_to_stop_leaves_nothing(tmp_path):
    servant = served.Servant()
    servant.start()
    server = psutil.Process(servant._process.pid)
    stream = os.open(os.devnull, os.O_RDWR)
    told = {"environment": environment(), "folder": tmp_path, "streams": [stream] * 3}
    pid = servant.fork(words=[sys.executable, "-c", "import time; time.sleep(60)  # import torch"], **told)
    os.close(stream)
    servant.stop()
    assert not server.is_running() and psutil.pid_exists(pid), "a program outlives it, as it would outlive a shell"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_test_without_the_marker_cannot_start_a_script(monkeypatch, tmp_path):
    servant = served.Servant()
    servant.is_allowed = False
    monkeypatch.setattr(subprocess, "Popen", subprocess.Popen)  # put back when the test ends
    servant.install()
    with pytest.raises(RuntimeError, match="has no marker"):
        subprocess.run([sys.executable, write(tmp_path / "train.py", "pass")], cwd=tmp_path)
    assert subprocess.run([sys.executable, "-c", "pass"]).returncode == 0


def test_two_threads_start_programs_at_once(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    script = write(tmp_path / "train.py", "import os, sys\nprint(os.getppid(), sys.argv[1])")

    def run(number):
        words = [sys.executable, script, str(number)]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60).stdout

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(run, range(8))] == [f"{os.getpid()} {number}\n" for number in range(8)]


def test_a_program_may_be_killed_while_it_is_started(tmp_path):
    script = write(tmp_path / "train.py", "import time\ntime.sleep(60)")
    for pause in (0.0, 0.005, 0.02):
        process = subprocess.Popen([sys.executable, script], cwd=tmp_path)
        time.sleep(pause)
        process.kill()
        assert process.wait(timeout=10) == -signal.SIGKILL


def test_children_of_multiprocessing_that_are_spawned_are_forked_too(monkeypatch):
    import multiprocessing

    context, found, forked = multiprocessing.get_context("spawn"), [], []
    fork = served.Servant.fork
    monkeypatch.setattr(served.Servant, "fork", lambda self, **told: forked.append(told) or fork(self, **told))
    for spawn in (served.real_spawn, multiprocessing.util.spawnv_passfds):
        monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", spawn)
        queue = context.SimpleQueue()
        child = context.Process(target=tell_of_parent, args=(queue,))
        child.start()
        child.join(timeout=60)
        assert child.exitcode == 0
        found.append(queue.get())
    assert len(forked) == 1 and found[0] == found[1]


def test_it_finds_the_hasten_that_is_tested(both):
    code = "import torch, hasten.agent.session as session; print(session.__file__)"
    (new, _), (forked, _) = both("-c", code)
    assert forked == new and forked[0].decode().startswith(SOURCE)
