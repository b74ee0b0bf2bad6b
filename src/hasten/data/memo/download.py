"""Call fsspec's file systems for remote objects: what identifies an object, and its bytes, with bounded retries.

fsspec is never imported here: what is called are file systems that the user's code has created.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import os
import random
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
Source = tuple[Any, ...]

PROTOCOLS = frozenset(("http", "https", "s3", "s3a", "gs", "gcs", "hf", "abfs", "abfss", "az"))
IDENTIFYING = (
    *("etag", "contentmd5", "digest", "lastmodified", "updated", "mtime"),
    *("generation", "md5hash", "versionid", "blobid", "lastcommit"),
)
"""What a file system may say of an object that changes with its content; case, "-" and "_" are ignored."""
ATTEMPTS = 5
STALL_SECONDS = 3.0  # without a byte, in the first attempt; each further attempt waits twice as long
BACKOFF_SECONDS = 0.1  # before the second attempt; doubles, with a jitter of half of it
POLL_SECONDS = 0.1
TRANSIENT = {
    *(errno.EIO, errno.ETIMEDOUT, errno.EBUSY, errno.EAGAIN, errno.ECONNRESET, errno.EPIPE, errno.ENETUNREACH),
    *(errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.ECONNABORTED),
    getattr(errno, "ESTALE", errno.EIO),
}
LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError, TypeError)
CLIENTS = ("aiohttp", "botocore", "aiobotocore", "requests", "httpx", "urllib3", "urllib", "http", "gcsfs")
_thread = threading.local()
_jitter = random.SystemRandom()  # the generators that datasets draw from stay as they are


class StoppedError(Exception):
    """A download is no longer wanted."""


class ShortReadError(OSError):
    """Fewer or more bytes arrived than the object has."""


def protocol_of(fs: Any) -> str | None:
    """Return the protocol of a file system of remote objects; None for any other file system."""
    names: Any = getattr(fs, "protocol", ())
    if getattr(fs, "asynchronous", False):
        return None
    for name in (names,) if isinstance(names, str) else names:
        if name in PROTOCOLS:
            return name
    return None


def of_this_process(fs: Any) -> Any:
    """Return a file system that works in this process: asynchronous ones do not survive a fork, and are made again."""
    if getattr(fs, "_pid", None) in (None, os.getpid()):
        return fs
    return type(fs)(*fs.storage_args, **fs.storage_options)


def source_of(fs: Any, path: str) -> Source:
    """Return what a path is relative to: protocol, endpoint, and bucket or host."""
    options: Any = getattr(fs, "client_kwargs", None) or {}
    endpoint = getattr(fs, "endpoint_url", None) or (
        options.get("endpoint_url") if isinstance(options, dict) else None
    )
    before, separator, rest = path.partition("://")
    return protocol_of(fs), endpoint, (rest if separator else before.lstrip("/")).partition("/")[0]


def identity_of(info: Mapping[str, Any]) -> tuple[bytes, int] | None:
    """Return the identity of an object's content and its size in bytes; None if the file system gives neither."""
    found = sorted(
        (name, str(value))
        for given, value in info.items()
        if (name := given.lower().replace("-", "").replace("_", "")) in IDENTIFYING and value not in (None, "")
    )
    size = info.get("size")
    if not found or not isinstance(size, int) or info.get("type") == "directory":
        return None
    return repr((found, size)).encode(), size


@contextlib.contextmanager
def directly() -> Generator[None]:
    """Read from file systems in the block, not from the disk, whatever this thread calls."""
    before = is_direct()
    _thread.is_direct = True
    try:
        yield
    finally:
        _thread.is_direct = before


def is_direct() -> bool:
    """Whether this thread is in a `directly` block."""
    return getattr(_thread, "is_direct", False)


def call(
    fs: Any,
    method: str,
    *arguments: Any,
    seconds: float,
    progress: Callable[[], object] = lambda: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Any:
    """Call a method of a file system.

    Args:
        fs: a file system of this process.
        method: name of the method.
        *arguments: its arguments.
        seconds: how long it may make no progress; file systems that are not asynchronous have timeouts of their own.
        progress: returns a value that changes with every byte that arrives.
        stopped: whether the result is no longer wanted.

    Raises:
        TimeoutError: without progress for `seconds`.
        StoppedError: if it is no longer wanted.
        Exception: whatever the method raises.
    """
    if not getattr(fs, "async_impl", False):
        with directly():
            return getattr(fs, method)(*arguments)
    future = asyncio.run_coroutine_threadsafe(getattr(fs, f"_{method}")(*arguments), fs.loop)
    last, since = progress(), time.monotonic()
    while True:
        try:
            return future.result(POLL_SECONDS)
        except concurrent.futures.TimeoutError:
            if future.done():
                return future.result()
        now = progress()
        if now != last:
            last, since = now, time.monotonic()
        if stopped():
            future.cancel()
            raise StoppedError
        if time.monotonic() - since > seconds:
            future.cancel()
            raise TimeoutError(f"no byte came for {seconds:g} s")


def retrying(
    action: Callable[[int], T], *, on_retry: Callable[[], object], stopped: Callable[[], bool] = lambda: False
) -> T:
    """Return `action(attempt)`, tried up to ATTEMPTS times while what it raises may pass; then raise the last error."""
    attempt = 0
    while True:
        try:
            return action(attempt)
        except Exception as error:
            attempt += 1
            if attempt == ATTEMPTS or not is_transient(error):
                raise
        on_retry()
        until = time.monotonic() + BACKOFF_SECONDS * 2 ** (attempt - 1) * _jitter.uniform(0.5, 1.5)
        while (left := until - time.monotonic()) > 0:
            if stopped():
                raise StoppedError
            time.sleep(min(left, POLL_SECONDS))


def is_transient(error: BaseException) -> bool:
    """Whether an error may pass: a lost connection, a timeout, a server's own error, a short read."""
    for one in _chain(error):  # the first that says it
        if (status := _status(one)) is not None:
            return status >= 500 or status in (408, 429)
        if _may_pass(one):
            return True
    return False


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(8):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, (*LASTING, StoppedError)):
        return False
    if isinstance(error, (ConnectionError, TimeoutError, concurrent.futures.TimeoutError, ShortReadError)):
        return True
    if isinstance(error, asyncio.TimeoutError) or (isinstance(error, OSError) and error.errno in TRANSIENT):
        return True
    return type(error).__module__.partition(".")[0] in CLIENTS


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error stands for."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        given: Any = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return given if isinstance(given, int) else None
    for owner in (error, response):
        for name in ("status", "status_code", "code"):
            given = getattr(owner, name, None)
            if isinstance(given, int) and 100 <= given < 600:
                return given
    return None
