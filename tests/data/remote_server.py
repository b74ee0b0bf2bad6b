"""A small HTTP server on 127.0.0.1 that delays, fails, stalls and counts."""

import contextlib
import functools
import hashlib
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Serves `objects`, by name. What it should do wrong is set while it runs."""

    def __init__(self):
        self.objects: dict[str, bytes] = {}
        self.delay = 0.0  # seconds before each answer
        self.bytes_per_second = None  # of all answers together
        self.has_etag = True
        self.fails = lambda method, name, number: (
            False
        )  # answers 503; `number`: of this method's requests for the name
        self.stalls = lambda name, number: 0.0  # seconds without a byte, in the middle of a body
        self.breaks = lambda name, number: False  # closes the connection in the middle of a body
        self.requests = Counter()  # by (method, name)
        self.bodies = Counter()  # bodies that were sent to their end, by name
        self.num_open = self.most_open = 0
        self.lock = threading.Lock()
        self._free_at = 0.0

    def __enter__(self):
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # a client that was killed
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fill(self, number, size=2000):
        """Serve that many objects; return their URLs."""
        names = [f"{at}.bin" for at in range(number)]
        self.objects |= {name: (name.encode() * size)[:size] for name in names}
        return [f"{self.url}/{name}" for name in names]

    @contextlib.contextmanager
    def counted(self, method, name):
        with self.lock:
            self.requests[method, name] += 1
            self.num_open += 1
            self.most_open = max(self.most_open, self.num_open)
            number = self.requests[method, name]
        try:
            yield number
        finally:
            with self.lock:
                self.num_open -= 1

    def pace(self, size):
        """Wait until the link that all answers share has sent so many bytes."""
        if self.bytes_per_second is None:
            return
        with self.lock:
            self._free_at = max(self._free_at, time.monotonic()) + size / self.bytes_per_second
            until = self._free_at
        time.sleep(max(0.0, until - time.monotonic()))


@functools.lru_cache(maxsize=4096)
def _etag(data):
    return f'"{hashlib.md5(data).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Server
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_HEAD(self):
        with self.owner.counted("HEAD", self.name) as number:
            self._begin("HEAD", number)

    def do_GET(self):
        with self.owner.counted("GET", self.name) as number:
            data = self._begin("GET", number)
            if data is None:
                return
            half = len(data) // 2
            try:
                self._send(data[:half])
                if (seconds := self.owner.stalls(self.name, number)) > 0:
                    self.wfile.flush()
                    time.sleep(seconds)
                if self.owner.breaks(self.name, number):
                    self.close_connection = True
                    self.wfile.flush()
                    self.connection.shutdown(2)
                    return
                with self.owner.lock:  # before the client has all of it
                    self.owner.bodies[self.name] += 1
                self._send(data[half:])
                self.wfile.flush()
            except OSError:
                return

    @property
    def name(self):
        return self.path.lstrip("/")

    def _send(self, data):
        for at in range(0, len(data), 1 << 16):
            piece = data[at : at + (1 << 16)]
            self.owner.pace(len(piece))
            self.wfile.write(piece)

    def _begin(self, method, number):
        time.sleep(self.owner.delay)
        data = self.owner.objects.get(self.name)
        if data is None or self.owner.fails(method, self.name, number):
            self.send_response(404 if data is None else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        asked = self.headers.get("Range")
        whole = len(data)
        if asked and method == "GET":
            first, last = asked.removeprefix("bytes=").split("-")
            start, end = int(first), min(int(last), whole - 1) if last else whole - 1
            data = data[start : end + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end}/{whole}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        if self.owner.has_etag:
            self.send_header("ETag", _etag(self.owner.objects[self.name]))
        self.end_headers()
        return data

    def log_message(self, *_):
        pass
