"""NVIDIA devices, from the driver's management library (NVML).

It never fails: without a driver there are no devices, and a value that a device does not report (on a laptop, a MIG slice, in
a container) is None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

from hasten.records import Device, DeviceSample

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class DriverFacts:
    """The NVIDIA driver. `problem` is NVML's message if it is installed but does not work."""

    version: str | None = None
    cuda: str | None = None
    problem: str | None = None


class Nvml:
    """An open NVML session, to be closed with `close`. Without a driver it has no devices."""

    def __init__(self) -> None:
        self.driver = DriverFacts()
        self._handles: list[object] = []
        self._pcie: dict[int, tuple[float | None, float | None]] = {}
        self._turn = 0
        self._nvml: ModuleType | None = None
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
        except (pynvml.NVMLError, OSError) as error:
            self.driver = DriverFacts(problem=_problem(error, pynvml))
            return
        self._nvml = pynvml
        count = self._ask(pynvml.nvmlDeviceGetCount) or 0
        handles = [self._ask(lambda i=i: pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]
        self._handles = [handle for handle in handles if handle is not None]
        self.driver = DriverFacts(
            version=_text(self._ask(pynvml.nvmlSystemGetDriverVersion)),
            cuda=_cuda_version(self._ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)),
        )

    def devices(self) -> tuple[Device, ...]:
        """All devices of the driver, even if CUDA_VISIBLE_DEVICES hides them from torch."""
        nvml = self._nvml
        if nvml is None:
            return ()
        return tuple(self._device(nvml, index, handle) for index, handle in enumerate(self._handles))

    def _device(self, nvml: ModuleType, index: int, handle: object) -> Device:
        capability = self._ask(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
        return Device(
            index=index,
            name=_text(self._ask(lambda: nvml.nvmlDeviceGetName(handle))) or "NVIDIA GPU",
            memory_bytes=self._ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)) or 0,
            compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
            driver=self.driver.version,
        )

    def sample(self) -> tuple[DeviceSample, ...]:
        """A sample of every device.

        Reading PCIe traffic takes the driver 20 ms per direction, so each call reads it for one device, and the
        others keep their last value.
        """
        nvml = self._nvml
        if nvml is None or not self._handles:
            return ()
        turn = self._turn % len(self._handles)
        self._turn += 1
        self._pcie[turn] = self._pcie_of(nvml, self._handles[turn])
        return tuple(self._sample_of(nvml, index, handle) for index, handle in enumerate(self._handles))

    def _sample_of(self, nvml: ModuleType, index: int, handle: object) -> DeviceSample:
        read, write = self._pcie.get(index, (None, None))
        return DeviceSample(
            utilization=self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
            memory_used_bytes=self._ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).used)),
            temperature_celsius=self._ask(
                lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
            power_watts=self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            pcie_read_bytes_per_second=read,
            pcie_write_bytes_per_second=write,
        )

    def _pcie_of(self, nvml: ModuleType, handle: object) -> tuple[float | None, float | None]:
        def ask(direction: int) -> float | None:
            return self._ask(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, direction) * 1024.0)

        return ask(nvml.NVML_PCIE_UTIL_RX_BYTES), ask(nvml.NVML_PCIE_UTIL_TX_BYTES)

    def _ask(self, query: Callable[[], Answer]) -> Answer | None:
        import pynvml

        try:
            return query()
        except (pynvml.NVMLError, OSError, AttributeError):
            return None  # not reported by this device, or not supported by this version of pynvml

    def close(self) -> None:
        """End the session; does nothing if it is already closed."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            self._ask(nvml.nvmlShutdown)


def _problem(error: Exception, nvml: ModuleType) -> str | None:
    # No library means no driver, which is not a problem: there is no NVIDIA GPU.
    absent = getattr(nvml, "NVMLError_LibraryNotFound", None)
    return None if absent is not None and isinstance(error, absent) else str(error)


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def _cuda_version(number: int | None) -> str | None:
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"
