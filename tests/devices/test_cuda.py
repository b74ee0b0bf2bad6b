"""Settings of CUDA's libraries, which torch keeps where there is no device too."""

import warnings

import pytest
import torch

from hasten.devices import accelerator, cuda

MATMUL = torch.backends.cuda.matmul
has_new_settings = pytest.mark.skipif(not hasattr(MATMUL, "fp32_precision"), reason="torch 2.9 and later")


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    torch.set_float32_matmul_precision("highest")
    MATMUL.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = True


def test_tf32_is_allowed_and_as_it_was_again():
    assert not cuda.allows_tf32()
    undo = cuda.allow_tf32()
    assert cuda.allows_tf32() and torch.get_float32_matmul_precision() == "high"
    undo()
    assert not cuda.allows_tf32() and torch.get_float32_matmul_precision() == "highest"


@has_new_settings
def test_a_script_that_sets_tf32_by_the_newer_names_is_understood():
    MATMUL.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="mix"):
        assert MATMUL.allow_tf32
    assert cuda.allows_tf32()


@has_new_settings
def test_tf32_is_allowed_by_the_newer_names_where_the_script_uses_them():
    MATMUL.fp32_precision = "tf32"  # the older names cannot be read from here on
    MATMUL.fp32_precision, torch.backends.cudnn.conv.fp32_precision = "ieee", "ieee"
    torch.backends.cudnn.rnn.fp32_precision = "ieee"
    undo = cuda.allow_tf32()
    assert MATMUL.fp32_precision == torch.backends.cudnn.conv.fp32_precision == "tf32"
    undo()
    assert MATMUL.fp32_precision == torch.backends.cudnn.conv.fp32_precision == "ieee"


def test_autotuning_is_switched_and_as_it_was_again():
    undo = cuda.autotune(True)
    assert cuda.autotunes()
    undo()
    assert not cuda.autotunes()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_nothing_is_there_and_nothing_fails():
    assert not accelerator.is_available() and not accelerator.is_available("cuda") and not accelerator.is_in_use()
    assert not cuda.has_tf32() and not cuda.has_bf16() and not cuda.is_capturing()
    assert cuda.memory_requests() is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device, and it may be in use")
def test_torch_is_not_asked_whether_there_is_a_device_before_the_script_asks(monkeypatch):
    def asked():
        raise AssertionError("the driver is initialized by this question")

    for name in ("is_available", "init", "_lazy_init", "device_count"):
        monkeypatch.setattr(torch.cuda, name, asked)
    monkeypatch.setattr(torch.accelerator, "device_count", asked)
    assert accelerator.built_for() in (None, "cuda")
    assert not accelerator.is_in_use()


def test_a_look_for_waits_that_was_never_begun_ends():
    filters = list(warnings.filters)
    cuda.WaitWatch(print).off()
    assert warnings.filters == filters


class AsMps:
    """What torch.mps offers."""

    is_available = staticmethod(lambda: True)
    current_allocated_memory = staticmethod(lambda: 300)
    recommended_max_memory = staticmethod(lambda: 1000)
    stream = None


def test_a_device_without_cudas_functions_is_asked_by_its_own(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch, "get_device_module", lambda device=None: AsMps)
    device = torch.device("mps")
    assert accelerator.built_for() == "mps" and accelerator.is_in_use() and not accelerator.has_streams(device)
    assert (accelerator.memory_in_use(), accelerator.free_memory(device)) == (300, 700)


@pytest.mark.parametrize("answer", [None, torch.device("cpu"), RuntimeError("no accelerator, in torch 2.6")])
def test_a_build_for_the_cpu_alone_has_no_accelerator(monkeypatch, answer):
    def current_accelerator():
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)
    assert accelerator.built_for() is None and not accelerator.is_in_use() and not accelerator.is_available()
