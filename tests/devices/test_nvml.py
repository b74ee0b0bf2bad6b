"""NVIDIA devices as their driver tells them, by canned answers."""

import sys
import types

import pytest

from hasten.devices.nvml import Nvml


class NVMLError(Exception):
    pass


class NVMLError_LibraryNotFound(NVMLError):
    pass


def refuse(*_):
    raise NVMLError("Not Supported")


@pytest.fixture
def nvml(monkeypatch):
    """Two devices of a driver that knows everything."""
    fake = types.ModuleType("pynvml")
    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlSystemGetDriverVersion": lambda: b"580.10",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 13010,
        "nvmlDeviceGetName": lambda handle: "H200",
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
        "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(total=1000, used=250 + handle),
        "nvmlDeviceGetUtilizationRates": lambda handle: types.SimpleNamespace(gpu=50),
        "nvmlDeviceGetTemperature": lambda handle, sensor: 41,
        "nvmlDeviceGetPowerUsage": lambda handle: 300_000,
        "nvmlDeviceGetPcieThroughput": lambda handle, direction: {"rx": 2, "tx": 1}[direction],
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_PCIE_UTIL_RX_BYTES": "rx",
        "NVML_PCIE_UTIL_TX_BYTES": "tx",
        "NVMLError": NVMLError,
        "NVMLError_LibraryNotFound": NVMLError_LibraryNotFound,
    }
    for name, value in answers.items():
        setattr(fake, name, value)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_a_driver_tells_its_devices(nvml):
    session = Nvml()
    first, second = session.devices()
    assert (first.index, second.index) == (0, 1)
    assert (first.name, first.memory_bytes, first.compute_capability) == ("H200", 1000, "9.0")
    assert (session.driver.version, session.driver.cuda, session.driver.problem) == ("580.10", "13.1", None)


def test_a_device_sample_is_in_shares_watts_and_bytes(nvml):
    sample = Nvml().sample()[0]
    assert (sample.utilization, sample.memory_used_bytes) == (0.5, 250)
    assert (sample.temperature_celsius, sample.power_watts) == (41.0, 300.0)
    assert (sample.pcie_read_bytes_per_second, sample.pcie_write_bytes_per_second) == (2048.0, 1024.0)


def test_traffic_is_asked_of_one_device_a_sample_because_it_is_slow(nvml):
    session = Nvml()
    assert [one.pcie_read_bytes_per_second for one in session.sample()] == [2048.0, None]
    assert [one.pcie_read_bytes_per_second for one in session.sample()] == [2048.0, 2048.0]


def test_a_figure_that_a_device_does_not_tell_is_none(nvml):
    nvml.nvmlDeviceGetUtilizationRates = refuse
    nvml.nvmlDeviceGetPcieThroughput = refuse
    sample = Nvml().sample()[0]
    assert sample.utilization is None
    assert sample.pcie_read_bytes_per_second is None
    assert sample.power_watts == 300.0


def test_no_driver_is_no_device_and_no_problem(nvml):
    def absent():
        raise NVMLError_LibraryNotFound("NVML Shared Library Not Found")

    nvml.nvmlInit = absent
    session = Nvml()
    assert (session.devices(), session.sample(), session.driver.problem) == ((), (), None)


def test_a_driver_that_does_not_work_says_why(nvml):
    def mismatch():
        raise NVMLError("Driver/library version mismatch")

    nvml.nvmlInit = mismatch
    session = Nvml()
    assert session.devices() == ()
    assert session.driver.problem == "Driver/library version mismatch"


def test_closing_twice_is_harmless(nvml):
    session = Nvml()
    session.close()
    session.close()
    assert session.sample() == ()


def test_without_the_binding_there_is_no_device(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    session = Nvml()
    assert (session.devices(), session.sample()) == ((), ())
    session.close()
