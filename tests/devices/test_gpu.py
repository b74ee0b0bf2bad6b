"""On a GPU: what hasten asks of it is answered, and everything is as it was afterwards."""

import mmap
import time
import warnings

import pytest
import torch

from hasten.agent.device_watch import DeviceWatch
from hasten.agent.marks import Marks
from hasten.devices import accelerator, cuda
from hasten.devices.nvml import Nvml

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda")


@pytest.fixture(autouse=True)
def begun():
    torch.zeros(1, device=DEVICE)


def busy(seconds=0.02):
    """Have the device work for about so long, and come back at once."""
    side = 4096 if torch.cuda.mem_get_info()[1] > 2 << 30 else 256
    matrix = torch.randn(side, side, device=DEVICE)
    start, end = accelerator.new_event(timed=True), accelerator.new_event(timed=True)
    matrix @ matrix
    torch.cuda.synchronize()
    start.record()
    matrix @ matrix
    end.record()
    torch.cuda.synchronize()
    for _ in range(max(1, min(200, int(1e3 * seconds / start.elapsed_time(end))))):
        matrix @ matrix
    return matrix


def test_the_accelerator_is_known_and_in_use():
    assert accelerator.built_for() == "cuda"
    assert accelerator.is_available() and accelerator.is_available(DEVICE) and not accelerator.is_available("xpu")
    assert accelerator.is_in_use() and cuda.is_in_use() and not cuda.is_capturing()


def test_memory_is_counted():
    before = accelerator.memory_in_use()
    held = torch.zeros(1 << 20, device=DEVICE)
    assert accelerator.memory_in_use() - before >= held.nbytes
    assert 0 < accelerator.free_memory(torch.device("cuda", 0)) < torch.cuda.mem_get_info()[1]
    del held
    requests = cuda.memory_requests()
    torch.cuda.empty_cache()
    torch.zeros(1 << 24, device=DEVICE)
    assert cuda.memory_requests() > requests


def test_an_event_is_passed_when_the_device_gets_there_and_nobody_waits():
    started = time.perf_counter()
    first, last = accelerator.new_event(timed=True), accelerator.new_event(timed=True)
    first.record()
    kept = busy(0.05)
    last.record()
    assert not last.query()
    torch.cuda.synchronize()
    assert kept.is_cuda and last.query()
    assert 0 < first.elapsed_time(last) / 1e3 < time.perf_counter() - started


def test_work_on_another_stream_goes_on_beside_the_scripts():
    stream = accelerator.new_stream(torch.device("cuda", 0))
    outside = accelerator.current_stream(torch.device("cuda", 0))
    kept = busy(0.05)
    with accelerator.on_stream(stream):
        assert accelerator.current_stream(torch.device("cuda", 0)) == stream
        event = accelerator.new_event()
        event.record()
    assert accelerator.current_stream(torch.device("cuda", 0)) == outside
    for _ in range(1000):
        if event.query():
            break
    ended = accelerator.new_event()
    ended.record()
    assert not ended.query() and kept.is_cuda
    assert accelerator.has_streams(torch.device("cuda", 0))


def test_the_gpu_watch_times_spans_and_finds_waits():
    marks = Marks()
    watch = DeviceWatch(marks)
    marks.full = True
    shown, filters, mode = warnings.showwarning, list(warnings.filters), torch.cuda.get_sync_debug_mode()
    watch.turn(full=True)
    start = marks.enter("forward")
    kept = busy(0.01)
    marks.leave("forward", start)
    mask = kept > 0
    found = kept[mask]
    with pytest.warns(UserWarning, match="the script's own"):
        warnings.warn("the script's own", stacklevel=1)
    watch.turn(full=False)
    watch.off()
    assert found.numel() and warnings.showwarning is shown and list(warnings.filters) == filters
    assert torch.cuda.get_sync_debug_mode() == mode
    assert any(kind == "sync" and "waiting for the GPU" in detail for kind, _, _, detail in marks.spans)
    torch.cuda.synchronize()
    marks.device.poll()
    assert [(kind, seconds > 0) for kind, _, seconds, _ in marks.device.spans] == [("forward", True)]
    start = marks.enter("backward")  # with events of the pool
    marks.leave("backward", start)
    torch.cuda.synchronize()
    marks.device.poll()
    assert len(marks.device.spans) == 2


def test_number_formats_are_known_by_what_the_device_is():
    capability = torch.cuda.get_device_capability()
    assert cuda.has_tf32() == (capability >= (8, 0) and torch.version.hip is None)
    assert cuda.has_bf16() == torch.cuda.is_bf16_supported(including_emulation=False)


def test_host_memory_is_locked_in_place_and_unlocked():
    page = mmap.PAGESIZE
    memory = memoryview(mmap.mmap(-1, 2 * page))
    # Two storages: torch asks where a tensor's storage begins.
    inside, outside = (torch.frombuffer(memory[start:][:page], dtype=torch.uint8) for start in (0, page))
    address = inside.data_ptr()
    undo = cuda.pin(address, page)
    assert undo is not None and inside.is_pinned() and not outside.is_pinned()
    assert cuda.pin(address, page) is None
    assert torch.ones(4, device=DEVICE).sum().item() == 4  # what was refused is not the next operator's error
    undo()
    assert not inside.is_pinned()


def test_the_driver_tells_the_device_and_what_it_does():
    driver = Nvml()
    try:
        (device, *_), (sample, *_) = driver.devices(), driver.sample()
        assert device.memory_bytes > 0 and device.compute_capability and driver.driver.version and driver.driver.cuda
        assert 0 <= sample.utilization <= 1 and sample.memory_used_bytes > 0
        assert sample.power_watts is None or sample.power_watts > 0
    finally:
        driver.close()
        driver.close()


def test_the_look_for_waits_ends_after_a_few_steps():
    marks = Marks()
    watch = DeviceWatch(marks)
    mode = torch.cuda.get_sync_debug_mode()
    watch.turn(full=True)
    assert torch.cuda.get_sync_debug_mode() != mode
    for _ in range(8):
        watch.step()
    assert torch.cuda.get_sync_debug_mode() == mode


def test_a_read_that_is_marked_itself_is_not_told_twice():
    marks = Marks()
    watch = DeviceWatch(marks)
    watch.turn(full=True)
    marks.reading = True
    torch.ones(1, device=DEVICE).item()
    marks.reading = False
    watch.off()
    assert marks.spans == []
