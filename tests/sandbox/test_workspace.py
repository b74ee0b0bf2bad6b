"""The scratch folder of a measurement: in it the strongest form that works here, and nothing of it stays."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import pytest
from command import HASTEN, QUICK, environment, run, train, write

from hasten import patches
from hasten.errors import CommandError, DirectoryError
from hasten.sandbox import guard, workspace
from hasten.sandbox.workspace import FORCE, HERE, Workspace, _choose, _entered, _sweep

sys.path.append(str(Path(__file__).parent))

from trees import tree_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")  # that everybody may run
GUARDED = [sys.executable, "-I", "-S", str(HERE / "guard.py")]


@pytest.fixture
def base(tmp_path, monkeypatch):
    """The folder for scratch folders."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "base"))
    (tmp_path / "base").mkdir()
    _choose.cache_clear()
    yield tmp_path / "base"
    _choose.cache_clear()


def ran(form, command, folder, *, cwd, **others):
    (folder / "view").mkdir(exist_ok=True)
    entered = [*_entered(form, folder / "view", folder, real=[]), *command]
    return subprocess.run(entered, cwd=cwd, capture_output=True, text=True, check=False, **others)


def test_of_a_workspace_nothing_is_left(base):
    with Workspace() as made:
        made.new_folder()
        assert [*base.iterdir()] == [made.folder]
        assert made.folder.stat().st_mode & 0o777 == 0o700, "nobody else may look into it"
    assert [*base.iterdir()] == []


@pytest.mark.parametrize("form", ["landlock", "redirect"])
def test_where_a_form_is_forbidden_the_next_one_serves(base, monkeypatch, capsys, form):
    works = workspace._works
    monkeypatch.setattr(workspace, "_works", lambda one, base: one == form and works(one, base))
    monkeypatch.setattr(patches, "_warned", set())
    with Workspace() as made:
        assert made.form == form
    assert ("stay changed" in capsys.readouterr().err) == (form == "redirect"), "what is not held back is said before"


def test_a_form_can_be_forced(base, monkeypatch):
    monkeypatch.setenv(FORCE, "redirect")
    with Workspace() as made:
        assert made.form == "redirect"


@pytest.mark.parametrize(
    ("asked", "answer"), [("none", "there is overlay, landlock, redirect"), ("overlay", "unset it")]
)
def test_a_form_that_there_is_not_is_refused(base, monkeypatch, asked, answer):
    monkeypatch.setenv(FORCE, asked)
    monkeypatch.setattr(workspace, "_works", lambda _form, _base: False)
    with pytest.raises(CommandError, match=answer):
        Workspace().__enter__()


def test_without_any_folder_for_temporary_files_it_says_what_to_do(base, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/nowhere")
    _choose.cache_clear()
    with pytest.raises(DirectoryError, match="TMPDIR"):
        Workspace().__enter__()


def test_what_a_crash_has_left_is_swept_and_what_is_in_use_is_not(base):
    with Workspace() as made:
        (base / "hasten-left").mkdir(mode=0o700)
        (base / "hasten-left/lock").touch(mode=0o600)
        (base / "hasten-left/view").mkdir(mode=0)
        (base / "hasten-of-somebody").mkdir()
        _sweep(base)
        assert sorted(path.name for path in base.iterdir()) == sorted(["hasten-of-somebody", made.folder.name])


def test_a_guard_ends_what_carries_its_folder_and_nothing_else(tmp_path):
    folder = tmp_path / "hasten-x"
    folder.mkdir()
    sleeps = ["sleep", "60"]
    mine = subprocess.Popen(sleeps, env={**os.environ, guard.VARIABLE: f"{folder}/launch-1"}, start_new_session=True)
    other = subprocess.Popen(sleeps, env={**os.environ, guard.VARIABLE: f"{folder}2/launch-1"})
    try:
        subprocess.run([*GUARDED, str(folder)], input=b"", check=True, timeout=20)
        assert mine.wait(timeout=5) == -signal.SIGKILL and other.poll() is None
        assert not folder.exists()
    finally:
        mine.kill()
        other.kill()
        mine.wait()
        other.wait()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_a_guard_outlives_what_a_batch_system_sends_to_all(tmp_path, name):
    folder = tmp_path / "hasten-1"
    folder.mkdir()
    process = subprocess.Popen([*GUARDED, str(folder)], stdin=subprocess.PIPE)
    deadline = time.monotonic() + 10
    number = getattr(signal, name)
    while not is_ignored(process.pid, number) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(b"", timeout=10)  # hasten is gone without a word
    assert process.returncode == 0 and not folder.exists()


def is_ignored(pid, number):
    """Whether a process ignores a signal."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn"))
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def test_a_guard_does_nothing_when_all_is_well(tmp_path):
    folder = tmp_path / "hasten-x"
    folder.mkdir()
    subprocess.run([*GUARDED, str(folder)], input=b"done", check=True, timeout=20)
    assert folder.exists()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["overlay", "landlock"])
def test_when_hasten_is_killed_the_script_ends_and_nothing_is_left(tmp_path, form):
    script = write(tmp_path / "train.py", train(loader=", num_workers=2"))
    (tmp_path / "base").mkdir()
    variables = environment() | {"TMPDIR": str(tmp_path / "base"), FORCE: form}
    process = subprocess.Popen([*HASTEN, "diagnose", script], cwd=tmp_path, env=variables, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not [*tmp_path.glob("base/hasten-*/launch-*/status-*")] and time.monotonic() < deadline:
        time.sleep(0.05)
    (scratch,) = tmp_path.glob("base/hasten-*")
    assert guard.processes_of(str(scratch))
    process.kill()
    process.wait()
    while (guard.processes_of(str(scratch)) or scratch.exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert guard.processes_of(str(scratch)) == [] and [*(tmp_path / "base").iterdir()] == []


@pytest.mark.skipif(os.geteuid() != 0 or PYTHON is None, reason="only root can become somebody else")
@pytest.mark.parametrize("form", ["overlay", "landlock"])
def test_whoever_is_not_root_is_kept_from_harm_too(form):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top:  # pytest's own folder is root's
        os.chmod(top, 0o755)
        folder, scratch = Path(top) / "work", Path(top) / "scratch"
        for path in (folder, scratch):
            path.mkdir()
            os.chown(path, 12345, 12345)
        (folder / "best.pt").write_text("best")
        os.chown(folder / "best.pt", 12345, 12345)
        before = tree_of(folder)
        asks = ["sh", "-c", "rm best.pt; echo new > log.txt; ls; id -u; cat /proc/self/status | grep CapEff"]
        shutil.copy(HERE / "enter.py", top)
        (scratch / "view").mkdir()
        os.chown(scratch / "view", 12345, 12345)
        told = {"form": form, "scratch": str(scratch / "view"), "shown": str(scratch), "real": []}
        entered = [PYTHON, "-I", "-S", f"{top}/enter.py", json.dumps(told), *asks]
        answer = subprocess.run(
            entered, cwd=folder, capture_output=True, text=True, user=12345, group=12345, extra_groups=[]
        )
        assert tree_of(folder) == before
        if answer.returncode == 125:
            pytest.skip(f"not here: {answer.stderr}")
        assert "12345" in answer.stdout and "CapEff:\t0000000000000000" in answer.stdout
        assert ("log.txt" in answer.stdout) == (form == "overlay"), answer.stdout


def test_a_command_that_cannot_enter_is_not_started(tmp_path):
    (tmp_path / "scratch").mkdir()
    answer = subprocess.run(
        [
            *_entered("overlay", Path("/proc/nowhere"), tmp_path / "scratch", real=[]),
            "touch",
            str(tmp_path / "started"),
        ],
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 125 and "no sandbox" in answer.stderr and not (tmp_path / "started").exists()


@pytest.mark.parametrize("form", ["overlay", "landlock"])
def test_the_scratch_folder_stays_real(tmp_path, form):
    """Whether a launch's own folder is written to, and a folder that is to be kept."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    answer = ran(form, ["sh", "-c", f"echo told > {scratch}/status"], scratch, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert (scratch / "status").read_text() == "told\n"


def test_files_beside_the_scratch_folder_and_links_above_it_are_seen(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "beside.txt").write_text("beside")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/inner.txt").write_text("inner")
    os.symlink("folder", tmp_path / "link")
    before = tree_of(tmp_path / "folder")
    asks = "cat beside.txt link/inner.txt; echo new > beside.txt; rm folder/inner.txt; cat beside.txt; ls . folder"
    answer = ran("overlay", ["sh", "-c", asks], scratch, cwd=tmp_path)
    assert answer.stdout == "besideinnernew\n.:\nbeside.txt\nfolder\nlink\nscratch\n\nfolder:\n", answer.stderr
    assert (tmp_path / "beside.txt").read_text() == "beside" and tree_of(tmp_path / "folder") == before


def test_a_crowded_folder_is_no_place_for_scratch_folders(tmp_path):
    """Each of its entries would have to be made anew in every launch."""
    for number in range(2010):
        (tmp_path / f"{number}").touch()
    (tmp_path / "scratch").mkdir()
    assert ran("overlay", ["true"], tmp_path / "scratch", cwd=tmp_path).returncode == 125
    assert not workspace._works("overlay", tmp_path)


def test_folders_and_files_that_others_delete_in_the_meantime_are_no_hindrance(tmp_path):
    """As temporary files of other programs come and go beside the scratch folder."""
    churn = (
        "import itertools, os\nfor n in map(str, itertools.count()):\n"
        " os.mkdir(n); os.rmdir(n); open(n, 'w').close(); os.unlink(n)"
    )
    scratch = [tmp_path / f"scratch{n}" for n in range(20)]
    for folder in scratch:
        folder.mkdir()
    other = subprocess.Popen([sys.executable, "-c", churn], cwd=tmp_path)
    try:
        answers = [ran("overlay", ["true"], folder, cwd=tmp_path) for folder in scratch]
    finally:
        other.kill()
        other.wait()
    assert [answer.stderr for answer in answers if answer.returncode] == []


def test_who_listens_outside_is_heard(tmp_path):
    """An ssh agent, a display server or a Ray cluster, whose sockets lie among temporary files."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{short}/agent")
        server.listen()
        asks = f"import socket; socket.socket(socket.AF_UNIX).connect({short!r} + '/agent')"
        answer = ran("overlay", [sys.executable, "-c", asks], scratch, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.slow
@pytest.mark.contract
def test_a_python_that_was_started_without_looking_for_ours_is_reported(tmp_path, monkeypatch):
    """Without a private view of the file system Python's own file functions redirect writes, from its start on."""
    monkeypatch.setenv(FORCE, "redirect")
    monkeypatch.setenv("PYTHONPATH", sysconfig.get_paths()["purelib"])  # which -S leaves out
    write(tmp_path / "train.py", train())
    notes = {}
    for options in ([], ["-S"]):
        answer = run("diagnose", "--json", *QUICK, sys.executable, *options, "train.py", cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
        notes[bool(options)] = " ".join(json.loads(answer.stdout[answer.stdout.index("{") :])["run"].get("notes", ()))
    assert "not redirected" in notes[True] and "not redirected" not in notes[False]


SERVICE = """
import json, os, socket, subprocess, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
while True:
    client, _ = server.accept()
    asked = json.loads(client.makefile().readline())
    code = subprocess.run(asked["command"], cwd=asked["cwd"], env=asked["env"]).returncode
    client.sendall(b"%d" % code)
    client.close()
"""
CLIENT = """
import json, os, socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.sendall(json.dumps({"command": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ)}).encode() + b"\\n")
sys.exit(int(client.recv(9) or 1))
"""


@pytest.mark.slow
@pytest.mark.contract
def test_what_a_service_starts_outside_the_sandbox_leaves_nothing_either(tmp_path):
    """As with `hasten diagnose srun ...`: Slurm's daemon starts the processes, and no mount of ours reaches them."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/kept.txt").write_text("kept")
    (tmp_path / "service.py").write_text(SERVICE)
    (tmp_path / "client.py").write_text(CLIENT)
    write(tmp_path / "work/train.py", train())
    (tmp_path / "work/train.py").write_text(
        "open('kept.txt', 'w').close(); open('new.txt', 'w').close()\n" + (tmp_path / "work/train.py").read_text()
    )
    before = {path: entry for path, entry in tree_of(tmp_path / "work").items() if path != "."}
    with tempfile.TemporaryDirectory() as short:
        service = subprocess.Popen(
            [sys.executable, str(tmp_path / "service.py"), f"{short}/s"], stderr=subprocess.DEVNULL
        )
        try:
            while not os.path.exists(f"{short}/s"):
                time.sleep(0.05)
            command = [sys.executable, str(tmp_path / "client.py"), f"{short}/s", sys.executable, "train.py"]
            answer = run("diagnose", "--json", *QUICK, *command, cwd=tmp_path / "work")
        finally:
            service.kill()
            service.wait()
    assert answer.returncode == 0, answer.stderr
    shutil.rmtree(tmp_path / "work/.hasten")
    assert {path: entry for path, entry in tree_of(tmp_path / "work").items() if path != "."} == before
    notes = json.loads(answer.stdout[answer.stdout.index("{") :])["run"]["notes"]
    assert any("outside the sandbox" in note for note in notes)


@pytest.mark.slow
def test_functions_that_a_library_holds_from_before_are_redirected(tmp_path):
    """As pathlib of Python 3.13 holds os.scandir, for `Path.glob`."""
    code = (
        "import glob, os, sys\n"
        "class Held: lstat, scandir = staticmethod(os.lstat), staticmethod(os.scandir)\n"
        "glob._StringGlobber = Held\n"
        "from hasten.patches import Patches\n"
        "from hasten.sandbox.redirect import install\n"
        "install(sys.argv[1], Patches(), real=[])\n"
        "open('new.txt', 'w').close()\n"
        "print([entry.path for entry in Held.scandir('.')], Held.lstat('new.txt').st_size)\n"
    )
    (tmp_path / "work").mkdir()
    command = [sys.executable, "-c", code, str(tmp_path / "view")]
    answer = subprocess.run(command, cwd=tmp_path / "work", capture_output=True, text=True, timeout=60)
    assert answer.stdout == "['./new.txt'] 0\n", answer.stderr
    assert os.listdir(tmp_path / "work") == []
