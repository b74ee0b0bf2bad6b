"""Share one file among independently started processes, such as the ranks of a host.

A process that has the file binds an abstract socket whose name contains its process id and descriptor; later processes read the
names in /proc/net/unix and open the file through /proc. No process has to serve requests. Because the sockets and the memfd
disappear with the last process, nothing is left behind, however the processes end. Where this is not possible (not on Linux, or
ranks in separate containers), each process gets its own file.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
import time

from hasten.data.layout.sharing import SharedFile, anonymous_file

WAIT_SECONDS = 5.0  # seconds to wait for another process that looks for the file


def shared_file(key: bytes, *, size: int) -> SharedFile:
    """Return the file shared by all of this user's processes on this host that use the same key and size.

    Raises OSError if the file cannot be created.
    """
    name = f"hasten-{hashlib.sha256(key + size.to_bytes(8, 'little')).hexdigest()[:32]}"
    guard = _guard(name) if sys.platform == "linux" else None
    if guard is None:
        return SharedFile(size)
    with guard:
        found = _found(name)
        file = SharedFile(size, descriptor=anonymous_file(name) if found is None else found)
        announcement = _bound(f"{name}/{os.getpid()}/{file.descriptor}")
        if announcement is not None:
            file.hold_socket(announcement)
        return file


def _guard(name: str) -> socket.socket | None:
    """Bind a socket that is held while looking for the file and creating it, so that only one process creates it."""
    end = time.monotonic() + WAIT_SECONDS
    while (guard := _bound(f"{name}/door")) is None and time.monotonic() < end:
        time.sleep(0.01)
    return guard


def _bound(name: str) -> socket.socket | None:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        bound.bind(f"\0{name}")
    except OSError:
        bound.close()
        return None
    return bound


def _found(name: str) -> int | None:
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            names = [line.partition(f"@{name}/")[2] for line in file]
    except OSError:
        return None
    for announced in names:
        place = re.fullmatch("([0-9]+)/([0-9]+)\n", announced)
        known = _opened(f"/proc/{place[1]}/fd/{place[2]}", name) if place else None
        if known is not None:
            return known
    return None


def _opened(link: str, name: str) -> int | None:
    """Open the file behind a link if it is the expected one and belongs to this user: any user may bind a name."""
    expected = f"/memfd:{name} (deleted)"
    try:
        if os.readlink(link) != expected:  # check first: opening some other file might block or have side effects
            return None
        descriptor = os.open(link, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(descriptor).st_uid == os.geteuid() and os.readlink(f"/proc/self/fd/{descriptor}") == expected:
        return descriptor
    os.close(descriptor)
    return None
