"""One shared file for processes that were started apart, as the ranks of a host are.

Who has the file binds an abstract socket whose name tells process and descriptor; who comes later reads the names in
/proc/net/unix and opens the file through /proc. Nobody has to serve, and as a socket's name and a memfd are gone with
the last process, nothing is left behind, however the processes end. Where this cannot be done (not on Linux, ranks in
containers of their own), each process gets a file of its own.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
import time

from hasten.data.layout.sharing import SharedFile, nameless

PATIENCE = 5.0  # seconds to wait while another process is at the door


def meet(key: bytes, *, size: int) -> SharedFile:
    """The file of all processes of this user on this host that meet with the same key and size.

    Raises OSError where there cannot be a file.
    """
    name = f"hasten-{hashlib.sha256(key + size.to_bytes(8, 'little')).hexdigest()[:32]}"
    door = _door(name) if sys.platform == "linux" else None
    if door is None:
        return SharedFile(size)
    with door:
        found = _found(name)
        file = SharedFile(size, descriptor=nameless(name) if found is None else found)
        sign = _bound(f"{name}/{os.getpid()}/{file.descriptor}")
        if sign is not None:
            file.keep(sign)
        return file


def _door(name: str) -> socket.socket | None:
    """Held while one looks for the file and makes it, so that no two make it."""
    end = time.monotonic() + PATIENCE
    while (door := _bound(f"{name}/door")) is None and time.monotonic() < end:
        time.sleep(0.01)
    return door


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
            signs = [line.partition(f"@{name}/")[2] for line in file]
    except OSError:
        return None
    for sign in signs:
        place = re.fullmatch("([0-9]+)/([0-9]+)\n", sign)
        known = _opened(f"/proc/{place[1]}/fd/{place[2]}", name) if place else None
        if known is not None:
            return known
    return None


def _opened(link: str, name: str) -> int | None:
    """The file behind a link, if it is the one meant and no other user's: anyone may bind a name."""
    meant = f"/memfd:{name} (deleted)"
    try:
        if os.readlink(link) != meant:  # asked first: to open some other file might wait, or do something
            return None
        descriptor = os.open(link, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if os.fstat(descriptor).st_uid == os.geteuid() and os.readlink(f"/proc/self/fd/{descriptor}") == meant:
        return descriptor
    os.close(descriptor)
    return None
