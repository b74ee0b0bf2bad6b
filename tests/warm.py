"""A process that has imported torch once, and forks for every Python program that a test starts.

In: requests on a socket, one a program: its words, working directory, environment and standard streams. Out: a child of
whoever asked, which runs the program as a new Python would. It finds torch not imported: `import torch` takes no time
there, and ends, as ever, with the backends that the program's own environment names. Refuses to know what hasten does.

Run by `served.py`: `python warm.py SOCKET SOURCE PADDING`. Linux only.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib.machinery
import io
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import types

LARGEST, MOST = 1 << 20, 100  # bytes of a request, and descriptors with it
HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
AGENT = ("facts", "hooks", "libraries", "quality", "readouts", "saving", "session", "workers")
IMPORTED = (  # one after another; torch imports the second itself, with the first optimizer
    ["torch"],
    ["torch._dynamo"],
    [*(f"hasten.agent.{name}" for name in AGENT)],
)
EXIT = os._exit  # hasten replaces it
ERRORS = sys.stdout.errors  # of this machine's locale


class Group:
    """Modules that come into sight together: those of one package, and with torch's all that it has imported."""

    def __init__(self):
        self.modules, self.along = {}, []

    def revive(self):
        """Put them where Python looks for what is imported."""
        modules, self.modules = self.modules, {}
        for name, module in modules.items():
            sys.modules.setdefault(name, module)
        for group in self.along:
            group.revive()


class Reviving:
    """A loader for what is imported, and was hidden."""

    def __init__(self, module, group):
        self._module, self._group = module, group

    def create_module(self, _spec):
        return self._module

    def exec_module(self, module):
        self._group.revive()
        if module.__name__ == "torch":
            _count_threads(module)
            if module._is_device_backend_autoload_enabled():
                module._import_device_backends()

    def __getattr__(self, name):
        return getattr(self._module.__loader__, name)


class Hidden:
    """Finds modules that are imported and not yet to be seen."""

    def __init__(self, stages):
        """`stages`: what each of several imports has brought, by package."""
        self._groups = []
        for packages in stages:
            groups = {}
            for package, modules in packages.items():
                groups[package] = Group()
                groups[package].modules = dict(modules)
            if "torch" in groups:
                groups["torch"].along = [group for package, group in groups.items() if package != "torch"]
            self._groups += groups.values()

    def find_spec(self, name, _path, _target=None):
        for group in self._groups:
            if module := group.modules.get(name):
                told = module.__spec__
                is_package = told.submodule_search_locations is not None
                loader = Reviving(module, group)
                spec = importlib.machinery.ModuleSpec(name, loader, origin=told.origin, is_package=is_package)
                spec.submodule_search_locations = told.submodule_search_locations
                spec.has_location = told.has_location
                return spec
        return None


def _count_threads(torch):
    """As many threads as a torch that is imported now would find."""
    wanted = os.environ.get("OMP_NUM_THREADS") or str(len(os.sched_getaffinity(0)))
    if torch.get_num_threads() != int(wanted):
        torch.set_num_threads(int(wanted))


class Warm:
    """What has been imported, and is hidden from a program until it imports it."""

    def __init__(self, source):
        self.path, seen = list(sys.path[1:]), {*sys.modules}
        standard = {*sys.stdlib_module_names, "__main__"}
        self.stages = []
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        sys.path.insert(0, source)  # an installed hasten may be another
        for names in IMPORTED:
            packages = {}
            for name in names:
                __import__(name)
            for name in {*sys.modules} - seen:
                if name.partition(".")[0] not in standard:
                    packages.setdefault(name.partition(".")[0], {})[name] = sys.modules[name]
            self.stages.append(packages)
            seen = {*sys.modules}
        self.hidden = {name for packages in self.stages for modules in packages.values() for name in modules}
        self.modules = {name: module for name, module in sys.modules.items() if name not in self.hidden}
        self.random = sys.modules["numpy.random"]
        self.meta_path, self.hook = list(sys.meta_path), sys.excepthook
        gc.collect()
        gc.freeze()  # what all programs share is not looked at, and so not copied, in each of them

    def put_away(self):
        """As if nothing of it were imported."""
        for name in [name for name in sys.modules if name not in self.modules]:
            if name in self.hidden or name.partition(".")[0] == "hasten":
                del sys.modules[name]  # others stay where a program becomes another: extensions are not loaded twice
        sys.modules.update(self.modules)
        sys.meta_path[:] = [Hidden(self.stages), *self.meta_path]
        sys.excepthook = self.hook
        self.random.seed()  # else all programs would draw the same numbers


def serve(channel):
    """Fork for every request; this returns in the forked process alone, with its request and streams."""
    while True:
        data, streams, _, _ = socket.recv_fds(channel, LARGEST, MOST)
        if not data:
            EXIT(0)
        told, tells = os.pipe()
        between = os.fork()
        if not between:
            middle = os.getpid()
            if os.fork():
                EXIT(0)  # an orphan goes to the next process above that takes orphans: whoever asks sees to that
            os.close(told)
            request = json.loads(data)
            if request["new_session"]:
                os.setsid()
            while os.getppid() == middle:
                time.sleep(0.0002)
            channel.close()
            os.write(tells, str(os.getpid()).encode())
            os.close(tells)
            return request, streams
        os.close(tells)
        os.waitpid(between, 0)
        pid = os.read(told, 20)
        os.close(told)
        for stream in streams:
            os.close(stream)
        channel.send(pid)


def become(warm, request, streams):
    """Be a Python that was just started with these words, in this folder and environment. Returns the words."""
    for number in HEARD:
        ignored = number in request["ignored"]
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    if signal.SIGINT not in request["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    apart = [fcntl.fcntl(stream, fcntl.F_DUPFD, 500) for stream in streams]  # none has another's number now
    for stream in streams:
        os.close(stream)
    for number, stream in zip([0, 1, 2, *request["kept"]], apart):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    _name(request["words"], request["environment"])
    return request["words"]


def _name(words, environment):
    """Have others read these words and variables in /proc: Python's own memory of both is written over."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        places = [int(field) for field in file.read().rpartition(")")[2].split()[45:49]]
    texts = [words, [f"{name}={value}" for name, value in environment.items()]]
    for start, end, text in zip(places[::2], places[1::2], texts):
        data = b"".join(os.fsencode(word) + b"\0" for word in text)[: end - start - 1]
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, data, len(data))


def _streams():
    """Standard streams as Python makes them at its start."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode = "r" if number == 0 else "w"
        raw = open(number, f"{mode}b", buffering=0 if unbuffered and number else -1, closefd=False)  # noqa: SIM115
        getattr(raw, "raw", raw).name = f"<{name}>"
        stream = io.TextIOWrapper(
            raw,
            encoding="utf-8",
            errors="backslashreplace" if number == 2 else ERRORS,
            newline=None if number == 0 else "\n",
            line_buffering=not unbuffered and (number == 2 or raw.isatty()),
            write_through=unbuffered and number > 0,
        )
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def execute(warm, words):
    """Run `python WORDS` in this process, to its end and the process's."""
    code = _exit_code(warm, words)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    EXIT(code)  # to take apart all that was imported in common would copy it


def _exit_code(warm, words):
    warm.put_away()
    _streams()
    sys.orig_argv = list(words)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    kind, *rest = words[1:]
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    if kind == "-m":
        first, sys.argv = os.getcwd(), ["-m", *rest[1:]]
    elif kind == "-c":
        first, sys.argv = "", ["-c", *rest[1:]]
    else:
        file = os.path.abspath(kind)
        first, sys.argv = os.path.dirname(os.path.realpath(file)), [kind, *rest]
        main.__file__, main.__cached__ = file, None
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", file)
    own = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [first, *dict.fromkeys([*own, *warm.path])]
    for path in [path for path, finder in sys.path_importer_cache.items() if finder is None]:
        del sys.path_importer_cache[path]
    with contextlib.suppress(ImportError):
        import sitecustomize  # noqa: F401
    try:
        if kind == "-m":
            runpy._run_module_as_main(rest[0])
        elif kind == "-c":
            exec(compile(rest[0], "<string>", "exec"), main.__dict__)
        else:
            try:
                with io.open_code(file) as script:
                    source = script.read()
            except OSError as error:
                sys.stderr.write(f"{words[0]}: can't open file {file!r}: [Errno {error.errno}] {error.strerror}\n")
                return 2
            exec(compile(source, file, "exec"), main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException as error:
        trace = error.__traceback__.tb_next  # without this function
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def enter(words):
    """Run the program that enters hasten's sandbox, up to where it becomes the command. Returns the command's words."""

    class Become(BaseException):
        """The sandbox is entered."""

    def stop(_file, words):
        raise Become(words)

    path, argv, execvp, os.execvp = words[3], sys.argv, os.execvp, stop
    sys.argv = words[3:]
    try:
        _streams()
        runpy.run_path(path, run_name="__main__")
    except Become as entered:
        return entered.args[0]
    finally:
        sys.argv, os.execvp = argv, execvp
    raise AssertionError("it becomes the command, or ends")


def zygote(warm):
    """A process beside this one that forks for it, before it has done anything. Returns the socket to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if pid := os.fork():
        theirs.close()
        return ours, pid, None
    ours.close()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    for number in HEARD:
        signal.signal(number, signal.SIG_IGN)
    return None, 0, serve(theirs)


def run(warm, request, streams):
    """Be the program that was asked for."""
    kind, what = [*request["words"][1:3], ""][:2]
    if (kind == "-m" and what == "hasten") or (kind == "-c" and "hasten.cli" in what):  # it will start others
        nothing = [os.dup(stream) for stream in streams]
        for stream in streams:
            os.close(stream)
        channel, pid, asked = zygote(warm)
        if asked is not None:
            for stream in nothing:
                os.close(stream)
            return run(warm, *asked)
        streams = nothing
        _launches(warm, channel, pid)
    words = become(warm, request, streams)
    if words[1] == "-I":
        words = enter(words)
    execute(warm, words)


def _launches(warm, channel, pid):
    """Have what is started by this process be forked by the one beside it."""
    import served

    servant = served.Servant(channel)
    servant.install()
    execvpe = os.execvpe

    def end():
        channel.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)

    def executed(file, words, environment):
        if not served.is_served(words, environment, os.getcwd()):
            execvpe(file, words, environment)
        end()
        servant.remove()
        os.environ.clear()
        os.environ.update(environment)
        _name(words, environment)
        for number in HEARD:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        execute(warm, words)

    atexit.register(end)
    os.execvpe = executed


def main():
    """Import, and serve."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    warm = Warm(sys.argv[2])
    for number in HEARD:
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    import served  # noqa: F401

    warm.modules["served"] = sys.modules["served"]
    channel.send(b"ready")
    run(warm, *serve(channel))


if __name__ == "__main__":
    main()
