"""A device's clock and memory, without a device: what operators and copies take, in which order, and what is left.

Everything is counted in seconds of the host's clock. An operator begins when the host has asked for it and its stream is
free; nobody waits for it but who asks for its result. The figures are those of no product: they are small, so that a
training of a few milliseconds on one core keeps this device as busy as a large one keeps a real device.
"""

import threading
import time
import weakref
from collections import deque

FLOPS = {"float32": 1e9, "tf32": 3e9, "bfloat16": 6e9}  # of matrix products and convolutions, a second
BYTES_PER_SECOND = 1e9  # of everything else
LAUNCH = 4e-6  # the least that an operator takes
PINNED, PAGEABLE = 50e6, 5e6  # bytes a second from the host
REQUEST = 1.5e-3  # to ask the driver for memory
AUTOTUNE = 30e-3  # to try cuDNN's algorithms on a new shape
UNTUNED = 1.8  # what a convolution takes without that, and what it takes with it is 1
MEMORY = 256 << 20
MOST_QUEUED = 1024  # operators; beyond, the host waits for one to end


class Clock:
    """Streams that work one operator after the other, side by side."""

    def __init__(self):
        self.free_at = {}  # by stream
        self.queued = deque()  # when each operator that was asked for ends

    def launch(self, stream, seconds, count=1):
        """Ask a stream for `count` operators that take so long together."""
        now = time.perf_counter()
        while self.queued and (self.queued[0] <= now or len(self.queued) >= MOST_QUEUED):
            self.wait(self.queued.popleft())
        begin = max(now, self.free_at.get(stream, 0.0))
        self.free_at[stream] = begin + seconds
        self.queued.extend(begin + seconds * (number + 1) / count for number in range(count))

    def end_of(self, stream):
        """When what the stream was asked for so far is done."""
        return max(time.perf_counter(), self.free_at.get(stream, 0.0))

    def hold(self, stream, until):
        """Have a stream begin nothing before an instant."""
        self.free_at[stream] = max(until, self.free_at.get(stream, 0.0))

    def wait(self, until):
        """Have the host wait for an instant."""
        if (left := until - time.perf_counter()) > 0:
            time.sleep(left)

    def wait_for_all(self):
        """Have the host wait for every stream."""
        self.wait(max(self.free_at.values(), default=0.0))


class Memory:
    """Bytes by storage, with an allocator that keeps what was freed until it is told not to."""

    def __init__(self):
        self.held = {}  # address: [bytes, tensors]
        self.kept = 0
        self.requests = 0
        self.most = 0
        self._lock = threading.RLock()

    @property
    def used(self):
        """Bytes of live tensors."""
        return sum(size for size, _ in self.held.values())

    def take(self, tensor):
        """Note that a tensor lives here; whether there is room for it."""
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if not size:
            return True
        with self._lock:
            if address in self.held:
                self.held[address][1] += 1
            else:
                if self.used + size > MEMORY:
                    return False
                if size > self.kept:
                    self.requests += 1
                    time.sleep(REQUEST)
                self.kept = max(0, self.kept - size)
                self.held[address] = [size, 1]
                self.most = max(self.most, self.used)
        weakref.finalize(tensor, self._free, address).atexit = False
        return True

    def _free(self, address):
        with self._lock:
            held = self.held.get(address)
            if held is not None:
                held[1] -= 1
                if not held[1]:
                    self.kept += self.held.pop(address)[0]
