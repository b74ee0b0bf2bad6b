"""Python programs that tests start are forked by a process that has imported torch already: see `warm.py`.

In: the words that `subprocess.Popen` is given. Out: a real child process, forked where that makes no difference to the
program, and started as ever where it might. Refuses to serve a program whose environment is read before Python starts.
"""

import ctypes
import inspect
import json
import multiprocessing.util
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import hasten

SUBREAPER = 36  # prctl(2): PR_SET_CHILD_SUBREAPER
HERE = Path(__file__).parent
PADDING = 100_000  # bytes; a program's words and variables are written over these
# Read by the dynamic linker, allocators, OpenMP or Python itself before a program's first line.
EARLY = ("LD_", "MALLOC_", "GLIBC_", "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "ONEDNN_", "DNNL_", "ATEN_")
EARLY_PYTHON = (
    "PYTHONHASHSEED", "PYTHONHOME", "PYTHONINSPECT", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONIOENCODING", "PYTHONUTF8",
)  # fmt: skip
# The first is obeyed; cv2 adds its own folder to the second, torch.compile sets the third, scikit-learn the last two.
FREE = ("OMP_NUM_THREADS", "LD_LIBRARY_PATH", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")

HEAVY = ("import torch", "from hasten", "spawn_main")  # code without any of these starts as soon by itself

Real, real_spawn = subprocess.Popen, multiprocessing.util.spawnv_passfds
LIBC = ctypes.CDLL(None)


def is_served(words, environment, folder):
    """Whether a fork of a Python that has imported torch does for these words what a new Python would."""
    if not isinstance(words, (list, tuple)) or len(words) < 2 or words[0] != sys.executable:
        return False
    early = [n for n in environment if (n.startswith(EARLY) and n not in FREE) or n in EARLY_PYTHON]
    if any(environment[name] != os.environ.get(name) for name in early):  # what is forked was started with ours
        return False
    if not environment.get("OMP_NUM_THREADS", "1").isdigit():
        return False
    kind, *rest = map(os.fspath, words[1:])
    if kind == "-I":  # the program that enters hasten's sandbox
        return len(rest) > 3 and rest[1].endswith("enter.py") and is_served(rest[3:], environment, folder)
    if kind == "-c":
        return any(words in rest[0] for words in HEAVY)
    if kind == "-m":
        return rest[0] == "hasten" or Path(folder, rest[0].partition(".")[0]).is_dir()
    return kind.endswith(".py") and not kind.startswith("-")


class Servant:
    """Has `subprocess.Popen` ask a process to fork, wherever that makes no difference."""

    def __init__(self, channel=None):
        self._channel, self._process = channel, None
        self._lock = threading.Lock()
        self.is_on = True  # off: every program is started as ever
        self.is_allowed = True  # off: to start one is an error

    def start(self):
        """Start the process, if it is not running."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LC_ALL", *FREE) if name in os.environ}
        padding = {f"PADDING{n}": "x" * PADDING for n in range(3)}
        source = os.fspath(Path(hasten.__file__).parents[1])  # the one that the tests import
        words = [sys.executable, os.fspath(HERE / "warm.py"), str(theirs.fileno()), source, "x" * 2000]
        environment = {**kept, "OMP_NUM_THREADS": "1", **padding}
        self._process = Real(words, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self._channel = ours
        assert ours.recv(16) == b"ready", "it could not import torch"

    def stop(self):
        """Have the process end."""
        if self._process is not None:
            self._channel.close()
            self._process.wait(timeout=20)
            self._process = None

    def fork(self, *, words, environment, folder, streams, new_session=False, kept=()):
        """A new child of this process that runs `words`, with `streams`, and the descriptors `kept`. Returns its id."""
        request = {
            "words": list(map(os.fspath, words)),
            "environment": environment,
            "folder": os.fspath(folder),
            "new_session": new_session,
            "kept": [*kept],
            "ignored": [n for n in (1, 2, 3, 15) if signal.getsignal(n) is signal.SIG_IGN],
        }
        with self._lock:
            if self._channel is None:
                self.start()
            LIBC.prctl(SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._channel, [json.dumps(request).encode()], [*streams, *kept])
                return int(self._channel.recv(20))
            finally:
                LIBC.prctl(SUBREAPER, 0, 0, 0, 0)

    def install(self):
        """From now on, `subprocess.Popen` asks."""
        servant = self

        class Popen(Real):
            def _execute_child(self, *given):
                names = [*inspect.signature(Real._execute_child).parameters][1:]
                told = dict(zip(names, given))
                environment = dict(os.environ) if told["env"] is None else told["env"]
                folder = told["cwd"] or os.getcwd()
                unusual = ("preexec_fn", "pass_fds", "executable", "shell", "gid", "gids", "uid", "startupinfo")
                if (
                    not servant.is_on
                    or any(told[name] for name in unusual if told[name] is not None)
                    or told["umask"] >= 0
                    or told.get("process_group", -1) >= 0
                    or not is_served(told["args"], environment, folder)
                ):
                    super()._execute_child(*given)
                    return
                if not servant.is_allowed:
                    raise RuntimeError(f"{told['args']} is started, and the test has no marker for that: slow")
                names = ("p2cread", "c2pwrite", "errwrite")
                streams = [n if told[name] == -1 else told[name] for n, name in enumerate(names)]
                ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
                try:
                    self.pid = servant.fork(
                        words=told["args"],
                        environment=environment,
                        folder=folder,
                        streams=streams,
                        new_session=told["start_new_session"],
                    )
                    self._child_created = True
                finally:
                    self._close_pipe_fds(*(told[name] for name in ends))

        def spawn(path, words, kept):
            environment = dict(os.environ)
            asked = [os.fsdecode(path), *(word for word in map(os.fsdecode, words[1:]) if word != "-B")]
            if not servant.is_on or not is_served(asked, environment, "."):
                return real_spawn(path, words, kept)
            told = {"words": asked, "environment": environment, "folder": os.getcwd(), "streams": [0, 1, 2]}
            return servant.fork(**told, kept=kept)

        subprocess.Popen = Popen
        multiprocessing.util.spawnv_passfds = spawn

    def remove(self):
        """Programs are started by Python itself again."""
        subprocess.Popen, multiprocessing.util.spawnv_passfds = Real, real_spawn
