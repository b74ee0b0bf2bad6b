"""The driver's management library for a device that is not there: figures from a script, by the clock.

Only what hasten asks is here, with the names of nvidia-ml-py.
"""

import itertools
import time
from types import SimpleNamespace

NVML_TEMPERATURE_GPU, NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 0, 1
SCRIPT = [(12, 95.0, 41), (64, 210.0, 46), (97, 305.0, 52), (88, 290.0, 55)]  # percent, watts, degrees; a second each
_began = time.monotonic()


class NVMLError(Exception):
    """What the driver refuses."""


class NVMLError_LibraryNotFound(NVMLError):
    """There is no driver."""


def _now():
    seconds = int(time.monotonic() - _began)
    return next(itertools.islice(itertools.cycle(SCRIPT), seconds, None))


def nvmlInit():
    pass


def nvmlShutdown():
    pass


def nvmlDeviceGetCount():
    return 1


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlSystemGetDriverVersion():
    return "580.0"


def nvmlSystemGetCudaDriverVersion_v2():
    return 13000


def nvmlDeviceGetName(handle):
    return "Simulated GPU"


def nvmlDeviceGetCudaComputeCapability(handle):
    return 9, 0


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(total=256 << 20, used=90 << 20)


def nvmlDeviceGetUtilizationRates(handle):
    return SimpleNamespace(gpu=_now()[0])


def nvmlDeviceGetPowerUsage(handle):
    return _now()[1] * 1000


def nvmlDeviceGetTemperature(handle, sensor):
    return _now()[2]


def nvmlDeviceGetPcieThroughput(handle, direction):
    if direction not in (NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES):
        raise NVMLError("no such counter")
    return 120_000
