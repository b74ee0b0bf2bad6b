"""Enter a sandbox and become the command: the program that every measured launch on Linux begins with.

Run by its path, with the standard library only: `python -I -S enter.py JSON COMMAND ...`. The JSON holds the form, the folder
for what is written, the folder that hasten reads from, and the folders that stay real. Without a command it only checks that
the sandbox can be entered; if it cannot, the exit code is 125 and the command does not start. Calls and flags are those of
mount(2), pivot_root(2), user_namespaces(7), landlock(7) and the kernel's overlayfs.rst.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import shutil
import stat
import sys

INSIDE = "HASTEN_INSIDE"  # variable: the namespace with the layers; see `redirect`
FAILED = 125  # exit code: no sandbox, and so no launch
NEW_MOUNTS, NEW_USER = 0x00020000, 0x10000000
READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, REMOUNT = 1, 2, 4, 8, 32
BIND, RECURSIVE, PRIVATE, DETACH = 4096, 16384, 1 << 18, 2
NO_NEW_PRIVILEGES = 38
STAY_REAL = ("/dev", "/proc", "/sys", "/run")  # devices and what lives as long as the machine is on
SMALL = 16 << 20  # bytes of a file beside the scratch folder that is copied; a larger one cannot be written to
COPIED = 64 << 20  # bytes of all such files
MOST_ENTRIES = 2000  # of a folder that is recreated; a larger one takes too long

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # the same number on every architecture
WRITES = 1 << 1 | sum(1 << n for n in range(4, 13))  # write a file; remove or make anything
REFER, TRUNCATE = 1 << 13, 1 << 14  # from the second and third version on
OF_FILES = 1 << 1 | TRUNCATE
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}

libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _mount(source: str, target: str, *, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = (os.fsencode(word) or None for word in (source, target, kind))
    _checked(libc.mount(*words, ctypes.c_ulong(flags), os.fsencode(data) or None), f"mount {target}")


class Mount:
    """A line of /proc/self/mountinfo."""

    def __init__(self, line: str) -> None:
        before, _, after = line.partition(" - ")
        fields = before.split()
        self.folder = fields[4].encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "surrogateescape")
        self.is_read_only = "ro" in fields[5].split(",")
        self.has_devices = after.split()[0] != "nodev"
        self.kind = after.split()[0]


def read_mounts() -> dict[str, Mount]:
    """Every mounted folder; of several on one folder the last covers the others."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return {mount.folder: mount for mount in map(Mount, file)}


def sockets() -> set[str]:
    """Where processes of this machine listen, as agents, display servers and clusters do: files that are sockets."""
    with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        paths = {line.rstrip("\n").partition(" /")[2] for line in file}
    return {f"/{path}" for path in paths if path and _is_socket(f"/{path}")}


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


class Overlay:
    """A private root in which every folder on a disk is covered by a layer that takes all writes.

    What is written cannot lie below a layer that it belongs to: the folders above it are recreated, entry by entry. In a
    user namespace neither can another mount, for a layer would uncover what it covers.
    """

    def __init__(self, scratch: str, shown: str, *, in_user_namespace: bool) -> None:
        self.scratch, self.shown = scratch, shown
        self.root = os.path.join(scratch, "root")
        self.options = "userxattr" if in_user_namespace else "redirect_dir=on"
        self.mounts = read_mounts()
        below = [shown, *(self.mounts if in_user_namespace else ())]
        self.opened = {above for path in below if not self._is_real(path) for above in _above(path)}
        self.number = self.copied = 0

    def build(self) -> None:
        """Mount it all below `root`."""
        os.makedirs(self.root)
        _mount(self.root, self.root, flags=BIND)
        self._mirror("/")
        inner = sorted(folder for folder in self.mounts if folder != "/")
        for folder in inner:
            if not self._is_real(folder):
                self._place(folder)
        for path in sockets():  # nobody listens at what a layer shows
            if not self._is_real(path) and os.path.lexists(self.root + path):
                with contextlib.suppress(FileNotFoundError):  # its program just ended
                    _mount(path, self.root + path, flags=BIND)

    def enter(self) -> None:
        """Make it the root of this process."""
        os.chdir(self.root)
        number = PIVOT_ROOT.get(platform.machine())
        if number is not None and libc.syscall(number, b".", b".") == 0:
            _checked(libc.umount2(b".", DETACH), "umount of the old root")
        else:
            os.chroot(".")
        os.chdir("/")

    def _is_real(self, folder: str) -> bool:
        return any(folder == real or folder.startswith(real + "/") for real in STAY_REAL)

    def _mirror(self, folder: str) -> None:
        """A folder that no layer can cover: its entries, each by itself."""
        entries = list(os.scandir(folder))
        if len(entries) > MOST_ENTRIES:
            raise OSError(errno.E2BIG, f"{folder} has {len(entries)} entries")
        for entry in entries:
            try:
                self._mirror_entry(entry, self.root + entry.path)
            except FileNotFoundError:
                if os.path.lexists(entry.path):
                    raise
                _remove(self.root + entry.path)  # another program deleted the entry in the meantime
        shutil.copystat(folder, self.root + folder)

    def _mirror_entry(self, entry: os.DirEntry[str], target: str) -> None:
        if entry.path == self.shown:
            os.mkdir(target)
            _mount(self.shown, target, flags=BIND)
        elif entry.is_symlink():
            os.symlink(os.readlink(entry.path), target)
        elif not entry.is_dir():
            self._mirror_file(entry, target)
        else:
            os.mkdir(target)
            if self._is_real(entry.path):
                _mount(entry.path, target, flags=BIND | RECURSIVE)
            elif entry.path not in self.mounts:
                self._show(entry.path)

    def _mirror_file(self, entry: os.DirEntry[str], target: str) -> None:
        status = entry.stat(follow_symlinks=False)
        is_file = stat.S_ISREG(status.st_mode)
        may_copy = is_file and os.access(entry.path, os.R_OK)
        if may_copy and status.st_size <= min(SMALL, COPIED - self.copied):
            self.copied += status.st_size
            shutil.copy2(entry.path, target)
            return
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
        _mount(entry.path, target, flags=BIND)
        if is_file:
            self._close_to_writes(entry.path, target)

    def _place(self, folder: str) -> None:
        """Another file system that is mounted on this folder."""
        target, mount = self.root + folder, self.mounts[folder]
        if not os.path.lexists(target):  # another one covers it
            return
        if os.path.isdir(folder) and not mount.is_read_only:
            try:
                self._show(folder)
                return
            except OSError:
                pass  # it cannot lie below a layer, as vfat cannot: it can be read, and not written to
        try:
            _mount(folder, target, flags=BIND | RECURSIVE)
        except PermissionError:
            return  # nobody may look there; nor may the script
        if not mount.is_read_only:
            self._close_to_writes(folder, target)

    def _close_to_writes(self, folder: str, target: str) -> None:
        kept = os.statvfs(folder).f_flag & (NO_SUID | NO_DEV | NO_EXEC)  # none of these may be dropped in a namespace
        _mount("", target, flags=BIND | REMOUNT | READ_ONLY | kept)

    def _show(self, folder: str) -> None:
        if folder not in self.opened:
            self._cover(folder)
        elif os.access(folder, os.R_OK | os.X_OK):
            self._mirror(folder)

    def _cover(self, folder: str) -> None:
        """A layer over one folder."""
        self.number += 1
        upper, work = (os.path.join(self.scratch, f"{kind}{self.number}") for kind in ("upper", "work"))
        os.mkdir(upper)
        os.mkdir(work)
        status = os.stat(folder)
        if status.st_uid != os.getuid():
            with contextlib.suppress(OSError):
                os.chown(upper, status.st_uid, status.st_gid)
        os.chmod(upper, stat.S_IMODE(status.st_mode))
        os.utime(upper, ns=(status.st_atime_ns, status.st_mtime_ns))
        paths = (
            f"{name}={_escaped(path)}"
            for name, path in (("lowerdir", folder), ("upperdir", upper), ("workdir", work))
        )
        _mount("overlay", self.root + folder, kind="overlay", data=",".join((*paths, self.options)))


def _above(path: str) -> list[str]:
    """Every folder that a path lies in, but the root."""
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]


def _remove(path: str) -> None:
    """An empty folder, a file, or nothing."""
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def enter_overlay(scratch: str, shown: str, real: list[str]) -> None:
    """Have this process see its own file system. Raises OSError."""
    folder = os.getcwd()
    user, group = os.getuid(), os.getgid()
    in_user_namespace = libc.unshare(NEW_MOUNTS) != 0
    if in_user_namespace:
        if user == 0:  # alone in a namespace it could not read what belongs to others
            _checked(-1, "unshare")
        _checked(libc.unshare(NEW_USER | NEW_MOUNTS), "unshare")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    _mount("", "/", flags=RECURSIVE | PRIVATE)
    overlay = Overlay(scratch, shown, in_user_namespace=in_user_namespace)
    overlay.build()
    for path in real:
        target = overlay.root + path
        if os.path.isdir(path) and os.path.isdir(target):
            _mount(path, target, flags=BIND | RECURSIVE)
    overlay.enter()
    os.chdir(folder)


class _Ruleset(ctypes.Structure):
    _fields_ = [("handled_access_fs", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def enter_landlock(shown: str, real: list[str]) -> None:
    """Have the kernel refuse to this process, and to all that it starts, any write elsewhere. Raises OSError."""
    version = _checked(libc.syscall(LANDLOCK_CREATE, None, 0, 1), "landlock")
    refused = WRITES | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    rules = _Ruleset(refused)
    ruleset = _checked(libc.syscall(LANDLOCK_CREATE, ctypes.byref(rules), ctypes.sizeof(rules), 0), "landlock")
    for path in (shown, *real, *STAY_REAL):
        if not os.path.exists(path):
            continue
        allowed = refused if os.path.isdir(path) else refused & OF_FILES
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = _Beneath(allowed, folder)
        _checked(libc.syscall(LANDLOCK_ADD, ruleset, 1, ctypes.byref(rule), 0), f"landlock {path}")
        os.close(folder)
    _checked(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    _checked(libc.syscall(LANDLOCK_RESTRICT, ruleset, 0), "landlock")
    os.close(ruleset)


def main() -> None:
    """Enter, and become the command."""
    asked = json.loads(sys.argv[1])
    try:
        if asked["form"] == "overlay":
            enter_overlay(asked["scratch"], asked["shown"], asked["real"])
            os.environ[INSIDE] = os.readlink("/proc/self/ns/mnt")
        else:
            enter_landlock(asked["shown"], asked["real"])
    except OSError as error:
        sys.stderr.write(f"hasten: no sandbox ({error}); nothing was started\n")
        sys.exit(FAILED)
    command = sys.argv[2:]
    if not command:
        return
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"hasten: {command[0]} cannot be started ({error.strerror})\n")
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
