"""The training process forks, is interrupted, dies or exits: nothing of the loader is left behind or mixed up."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest


def write(folder, text):
    script = folder / "train.py"
    script.write_text(text)
    return script


def run(script):
    return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_workers_reaped_by_other_code_do_no_harm(tmp_path):
    script = write(
        tmp_path,
        "import signal, torch\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "from hasten import Loader\n"
        "class D(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 20\n"
        "    def __getitem__(self, i): return i\n"
        "loader = Loader(D(), 4, num_workers=2)\n"
        "for _ in range(2): print(len(list(loader)))\n",
    )
    done = run(script)
    assert (done.stdout, done.returncode) == ("5\n5\n", 0), done.stderr


@pytest.mark.slow
def test_a_fork_of_the_training_process_has_separate_batches(tmp_path):
    script = write(
        tmp_path,
        "import os, torch\n"
        "from hasten import Loader\n"
        "class D(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 400\n"
        "    def __getitem__(self, i): return torch.full((100,), i)\n"
        "loader = Loader(D(), 4)\n"
        "batches = iter(loader); first = next(batches)\n"
        "child = os.fork()\n"
        "if child == 0: first.fill_(-5)\n"
        "seen = [batch[:, 0].tolist() for batch in batches] + [batch[:, 0].tolist() for batch in loader]\n"
        "order = [list(range(k, k + 4)) for k in range(0, 400, 4)]\n"
        "assert seen == order[1:] + order, seen\n"
        "if child == 0: os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0 and first[0, 0] == 0\n",
    )
    done = run(script)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_workers_exit_when_the_parent_dies(tmp_path):
    script = write(
        tmp_path,
        "import os, signal, sys, torch\n"
        "from hasten import Loader\n"
        "class D(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 10000\n"
        "    def __getitem__(self, i): return i\n"
        "it = iter(Loader(D(), 4, num_workers=2)); next(it)\n"
        "print(*[p.pid for p in it._pool.processes], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    done = run(script)
    workers = [int(word) for word in done.stdout.split()]
    assert len(workers) == 2
    until = time.monotonic() + 20
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in workers):
        assert time.monotonic() < until, "a worker outlived its parent"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["pass", "del it", "sys.exit(3)", "raise KeyError('mine')"])
def test_a_process_may_exit_at_any_time_without_extra_output(tmp_path, ending):
    script = write(
        tmp_path,
        "import sys, torch\n"
        "from hasten import Loader\n"
        "class D(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 10000\n"
        "    def __getitem__(self, i): return torch.ones(100), i\n"
        "loader = Loader(D(), 4, num_workers=2, persistent_workers=True)\n"
        "it = iter(loader); kept = next(it)\n"
        f"{ending}\n",
    )
    done = run(script)
    expected = {"sys.exit(3)": 3, "raise KeyError('mine')": 1}.get(ending, 0)
    assert done.returncode == expected, done.stderr
    assert "hasten" not in done.stderr


@pytest.mark.slow
def test_ctrl_c_reaches_the_loop_and_stops_the_workers(tmp_path):
    script = write(
        tmp_path,
        "import time, torch\n"
        "from hasten import Loader\n"
        "class D(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 10000\n"
        "    def __getitem__(self, i): time.sleep(0.001); return i\n"
        "for step, batch in enumerate(Loader(D(), 4, num_workers=2)):\n"
        "    if step == 3: print('going', flush=True)\n",
    )
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "going\n"
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode in (-signal.SIGINT, 130, 1)
    assert said.count("Traceback") == 1 and "KeyboardInterrupt" in said


@pytest.mark.slow
def test_a_forked_child_starts_its_own_workers(tmp_path):
    script = write(
        tmp_path,
        "import os, torch\n"
        "from hasten import Loader\n"
        "class D(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 40\n"
        "    def __getitem__(self, i): return i\n"
        "loader = Loader(D(), 4, num_workers=1, persistent_workers=True)\n"
        "before = torch.cat(list(loader)).tolist()\n"
        "child = os.fork()\n"
        "assert torch.cat(list(loader)).tolist() == before == list(range(40))\n"
        "if child: assert os.waitpid(child, 0)[1] == 0\n",
    )
    done = run(script)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_loader_with_a_cache_that_lives_to_the_end_says_nothing(tmp_path):
    script = write(
        tmp_path,
        "import torch\n"
        "from hasten import Loader\n"
        "class D(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 20\n"
        "    def __getitem__(self, i): return torch.zeros(9)\n"
        "loader = Loader(D(), 4, cache='1 MiB')\n"
        "print(len(list(loader)))\n",
    )
    done = run(script)
    assert (done.stdout, done.returncode) == ("5\n", 0)
    assert done.stderr.startswith("nothing is cached: ") and done.stderr.count("\n") == 1
