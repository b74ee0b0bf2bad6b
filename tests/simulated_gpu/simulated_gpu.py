"""A CUDA device that is not there, for rehearsals: `install` is called at the end of `import torch`, in every process.

What is simulated: tensors that say they are on "cuda" lie in the host's memory, and operators on them compute what they
would, at once; when a device would be done with them is told by the clock of `device_model`. Streams, events, waiting
for the device and torch's warnings of it, copies (pinned or not, waited for or not), memory and its end, cuDNN's
autotuning, the rates of float32, TF32 and bfloat16, NVML. A replaced function of torch takes only what the real one takes.

What is not: kernels, their rounding, CUDA graphs and torch.compile (the function itself runs), several devices, and
whatever a thread or a worker process other than the main one computes on the device.
"""

import contextlib
import functools
import inspect
import threading
import time
import warnings
import weakref
from types import SimpleNamespace

import device_model as model
import torch
from torch.overrides import TorchFunctionMode

NAME = "Simulated GPU"
CUDA = torch.device("cuda", 0)
clock, memory = model.Clock(), model.Memory()
state = SimpleNamespace(
    begun=False, debug=0, forward=0.0, operators=0, shapes=set(), ranges={}, current=threading.local()
)
waiting = ("item", "tolist", "__bool__", "__float__", "__int__", "__index__", "__repr__", "__format__", "nonzero")
free = (
    "__get__",
    "__set__",
    "size",
    "dim",
    "stride",
    "numel",
    "detach",
    "view",
    "requires_grad_",
    "is_pinned",
    "register_hook",
)
plain = torch._C.DisableTorchFunction


class Stream:
    """Work in order."""

    def __init__(self, device=None, priority=0, **_):
        self.device = CUDA
        self.stream_id = id(self)

    def wait_event(self, event):
        clock.hold(self, event.at)

    def wait_stream(self, stream):
        clock.hold(self, clock.end_of(stream))

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def query(self):
        return time.perf_counter() >= clock.free_at.get(self, 0.0)

    def synchronize(self):
        clock.wait(clock.end_of(self))

    def is_capturing(self):
        return False

    def __enter__(self):
        state.current.__dict__.setdefault("outer", []).append(current_stream())
        state.current.stream = self
        return self

    def __exit__(self, *_):
        state.current.stream = state.current.outer.pop()


class Event:
    """An instant of a stream; passed late, and only then telling time."""

    def __init__(self, device=None, *, enable_timing=False, blocking=False, interprocess=False):
        assert device is None or torch.device(device).type == "cuda"
        self.at, self._is_timed = None, enable_timing

    def record(self, stream=None):
        self.at = clock.end_of(stream or current_stream())

    def query(self):
        return self.at is None or time.perf_counter() >= self.at

    def wait(self, stream=None):
        clock.hold(stream or current_stream(), self.at)

    def synchronize(self):
        clock.wait(self.at)

    def elapsed_time(self, end_event):
        if not self._is_timed or not end_event._is_timed:
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return 1e3 * (end_event.at - self.at)


DEFAULT = Stream()


def current_stream(device=None):
    return getattr(state.current, "stream", DEFAULT)


def is_there(tensor):
    return getattr(tensor, "_is_on_the_simulated_gpu", False)


def put_there(tensor):
    """A tensor says from now on that it is on the device."""
    if is_there(tensor):
        return
    state.begun = True
    if not memory.take(tensor):
        size = tensor.untyped_storage().nbytes() / 2**20
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size:.2f} MiB. GPU 0 is simulated.")
    tensor._is_on_the_simulated_gpu = True


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_of(one)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))


def means_gpu(device):
    if isinstance(device, bool) or not isinstance(device, (str, int, torch.device)):
        return False
    return isinstance(device, int) or torch.device(device).type == "cuda"


def wait_here():
    """The host waits for what it asked for."""
    if state.debug:
        warnings.warn("called a synchronizing CUDA operation (Triggered internally at simulated_gpu)", stacklevel=4)
    clock.wait(clock.end_of(current_stream()))


def copy_there(tensor, *, waits):
    """Bytes cross from the host: from pinned memory by themselves, else with the host's help."""
    pinned = tensor.is_pinned()
    with plain():
        copied = tensor.detach().clone() if not tensor.requires_grad else tensor.clone()
    clock.launch(current_stream(), model.LAUNCH + tensor.nbytes / (model.PINNED if pinned else model.PAGEABLE))
    put_there(copied)
    if waits or not pinned:
        wait_here()
    return copied


def seconds_of(name, arguments, settings, output):
    """What an operator takes on the device."""
    if name in free:
        return 0.0
    inputs, found = [t for t in tensors_of([arguments, settings]) if t.dim()], next(tensors_of(output), None)
    taken = max(model.LAUNCH, sum(t.nbytes for t in inputs) / model.BYTES_PER_SECOND)
    if found is None:  # in place, as an optimizer's step
        return taken
    weights = [t for t in inputs if t.dim() >= 2]
    if name in ("linear", "matmul", "__matmul__", "mm", "bmm", "addmm") and len(weights) >= 2:
        inner = weights[1].shape[-1] if name == "linear" else weights[1].shape[-2]
        return max(taken, 2 * found.numel() * inner / rate("matmul"))
    if name in ("conv1d", "conv2d", "conv_transpose2d") and len(weights) >= 2:
        return max(taken, 2 * found.numel() * weights[1][0].numel() / rate("cudnn")) * tuning_of(inputs)
    if name in ("lstm", "gru", "rnn_tanh"):
        return taken + 2 * sum(w.numel() for w in weights[1:]) * found.shape[0] * found.shape[1] / rate("cudnn")
    return taken


def rate(library):
    if torch.is_autocast_enabled("cuda"):
        return model.FLOPS["bfloat16"]
    owner = torch.backends.cuda.matmul if library == "matmul" else torch.backends.cudnn
    return model.FLOPS["tf32" if owner.allow_tf32 else "float32"]


def tuning_of(inputs):
    if not torch.backends.cudnn.benchmark:
        return model.UNTUNED
    shapes = tuple(tuple(t.shape) for t in inputs)
    if shapes not in state.shapes:
        state.shapes.add(shapes)
        clock.launch(current_stream(), model.AUTOTUNE)
        clock.wait(clock.end_of(current_stream()))
    return 1.0


class Disguise(TorchFunctionMode):
    """Operators of torch, as the main thread calls them from Python."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        made_there = means_gpu(kwargs.get("device")) and not isinstance(kwargs["device"], int)
        if made_there:
            kwargs["device"] = "cpu"
        there = made_there or any(map(is_there, tensors_of([args, kwargs])))
        if not there:
            return func(*args, **kwargs)
        if name in waiting or (name == "__getitem__" and any(t.dtype == torch.bool for t in tensors_of(args[1:]))):
            wait_here()
        output = func(*args, **kwargs)
        self._count(name, args, kwargs, output)
        if name == "__set__":
            for tensor in tensors_of(args[:1]):
                put_there(tensor)
        elif not made_there and kwargs.get("device") == "cpu":
            pass
        else:
            for tensor in tensors_of(output):
                put_there(tensor)
        return output

    def _count(self, name, args, kwargs, output):
        with plain():
            taken = seconds_of(name, args, kwargs, output)
        if torch.is_grad_enabled():
            state.forward += taken
            state.operators += bool(taken)
        if taken:
            clock.launch(current_stream(), taken)


def replace(owner, name, function):
    """Put a function in another's place, which takes only what that one takes."""
    original = getattr(owner, name)
    try:
        signature = inspect.signature(original)
    except (TypeError, ValueError):
        signature = None
    if inspect.isclass(function) or signature is None:
        setattr(owner, name, function)
        return

    @functools.wraps(original)
    def call(*arguments, **settings):
        signature.bind(*arguments, **settings)
        return function(*arguments, **settings)

    setattr(owner, name, call)


class Saved:
    """A tensor that a backward will want: its memory is taken until then."""

    def __init__(self, tensor):
        self.tensor = tensor
        if tensor.untyped_storage().data_ptr() in memory.held:
            memory.take(tensor)


def tensor_methods():
    kind, original = torch.Tensor, {name: getattr(torch.Tensor, name) for name in ("to", "cpu", "is_pinned", "numpy")}
    inner_device = torch._C.TensorBase.device

    def device(self):
        if is_there(self):
            return CUDA
        with plain():
            return inner_device.__get__(self)

    def to(self, *arguments, **settings):
        device = settings.get("device", next((a for a in arguments if isinstance(a, (str, int, torch.device))), None))
        if isinstance(device, bool):
            device = None
        other = next((a for a in arguments if isinstance(a, torch.Tensor)), None)
        if other is not None:
            device, arguments = other.device, (other.device, other.dtype, *arguments[1:])
        if device is None:
            return original["to"](self, *arguments, **settings)
        waits = not (settings.get("non_blocking", False) or True in arguments[1:])
        dtype = settings.get("dtype", next((a for a in arguments if isinstance(a, torch.dtype)), self.dtype))
        converted = self if dtype == self.dtype else original["to"](self, dtype)
        if means_gpu(device) and not is_there(self):
            return copy_there(converted, waits=waits)
        if not means_gpu(device) and is_there(self):
            return cpu(converted)
        return converted.clone() if settings.get("copy") else converted

    def cuda(self, device=None, non_blocking=False, memory_format=torch.preserve_format):
        return to(self, "cuda", non_blocking=non_blocking)

    def cpu(self, memory_format=torch.preserve_format):
        if not is_there(self):
            return original["cpu"](self)
        wait_here()
        with plain():
            return self.clone()

    def numpy(self, *, force=False):
        if is_there(self) and not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        with plain():
            return original["numpy"](self, force=force)

    def pin_memory(self, device=None):
        with plain():
            copied = self.clone()
        address = copied.untyped_storage().data_ptr()
        state.ranges[address] = copied.untyped_storage().nbytes()
        weakref.finalize(copied, state.ranges.pop, address, None).atexit = False
        return copied

    def is_pinned(self, device=None):
        with plain():
            address = self.untyped_storage().data_ptr()  # torch asks for the storage, not for the view
        return any(start <= address < start + size for start, size in state.ranges.items())

    def record_stream(self, stream):
        assert is_there(self) and isinstance(stream, Stream)

    kind.device = property(device)
    kind.is_cuda = property(is_there)
    for function in (to, cuda, cpu, numpy, pin_memory, is_pinned, record_stream):
        setattr(kind, function.__name__, function)
    torch.nn.Parameter.__deepcopy__ = deepcopied(torch.nn.Parameter.__deepcopy__)


def deepcopied(original):
    def __deepcopy__(self, memo):
        copied = original(self, memo)
        if is_there(self):
            put_there(copied)
        return copied

    return __deepcopy__


def register(address, size, flags):
    if address in state.ranges:
        return 712  # cudaErrorHostMemoryAlreadyRegistered
    state.ranges[address] = size
    return 0


def unregister(address):
    state.ranges.pop(address, None)
    return 0


def give_back():
    memory.kept = 0


def begin():
    state.begun = True


def synchronize(device=None):
    clock.wait_for_all()


@contextlib.contextmanager
def stream_context(stream):
    with stream if stream is not None else contextlib.nullcontext():
        yield


def set_debug(debug_mode):
    state.debug = {"default": 0, "warn": 1, "error": 2}.get(debug_mode, debug_mode)


def run_backward(original):
    """Backward takes twice what the forwards since the last one took."""

    def _engine_run_backward(*arguments, **settings):
        if state.operators:
            clock.launch(current_stream(), 2 * state.forward, count=2 * state.operators)
            state.forward, state.operators = 0.0, 0
        return original(*arguments, **settings)

    return _engine_run_backward


def autocast_both(original):
    """The operators compute on the CPU, in the precision that was asked for on the device."""

    def set_autocast(device, value):
        original(device, value)
        if device == "cuda":
            original("cpu", value)

    return set_autocast


def install():
    """Pretend."""
    properties = SimpleNamespace(
        name=NAME, total_memory=model.MEMORY, multi_processor_count=4, major=9, minor=0, warp_size=32
    )
    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=unregister)
    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: state.begun,
        "init": begin,
        "_lazy_init": begin,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda device=None: NAME,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: properties,
        "get_arch_list": lambda: ["sm_90"],
        "is_bf16_supported": lambda including_emulation=True: True,
        "current_stream": current_stream,
        "default_stream": lambda device=None: DEFAULT,
        "stream": stream_context,
        "synchronize": synchronize,
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda new_state, device="cuda": torch.set_rng_state(new_state),
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "set_sync_debug_mode": set_debug,
        "get_sync_debug_mode": lambda: state.debug,
        "cudart": lambda: runtime,
        "empty_cache": give_back,
        "memory_allocated": lambda device=None: memory.used,
        "max_memory_allocated": lambda device=None: memory.most,
        "memory_reserved": lambda device=None: memory.used + memory.kept,
        "reset_peak_memory_stats": lambda device=None: setattr(memory, "most", memory.used),
        "mem_get_info": lambda device=None: (model.MEMORY - memory.used - memory.kept, model.MEMORY),
        "memory_stats": lambda device=None: {"num_device_alloc": memory.requests, "num_alloc_retries": 0},
        "Stream": Stream,
        "Event": Event,
    }
    for name, answer in answers.items():
        replace(torch.cuda, name, answer)
    for name, answer in {
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_stream": current_stream,
        "current_device_index": lambda: 0,
        "set_device_index": lambda device: None,
        "synchronize": synchronize,
    }.items():
        replace(torch.accelerator, name, answer)
    torch.Stream, torch.Event = Stream, Event
    torch.autograd._engine_run_backward = run_backward(torch.autograd._engine_run_backward)
    torch.set_autocast_enabled = autocast_both(torch.set_autocast_enabled)
    torch.set_autocast_dtype = autocast_both(torch.set_autocast_dtype)
    torch.compile = lambda model=None, **_: model if model is not None else (lambda given: given)
    replace(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    tensor_methods()
    torch.serialization.register_package(0, lambda _: None, lambda storage, at: storage if "cuda" in at else None)
    torch._C._autograd._push_saved_tensors_default_hooks(Saved, lambda saved: saved.tensor)
    Disguise().__enter__()
