"""The lines of `hasten check`, from hand-written machines."""

import pytest

from hasten.diagnosis.check import check
from hasten.records import Device, DiskSpeed, Machine, ReadRate, ReadRates

GIB = 1 << 30
DISK = DiskSpeed(
    folder="/data",
    file_system="ext4",
    kind="ssd",
    sequential_bytes_per_second=2e9,
    random_bytes_per_second=6e8,
    random_read_bytes=131072,
    file_bytes=1 << 28,
    free_bytes=100 * GIB,
)


def box(**changes):
    facts = {
        "system": "Linux-6.1-x86_64",
        "python": "3.12",
        "torch": "2.14.1+cpu",
        "torch_cuda": None,
        "cpu": "A CPU",
        "num_cores": 8.0,
        "num_cores_present": 8,
        "cpu_features": ("avx2",),
        "memory_bytes": 32 * GIB,
        "memory_available_bytes": 24 * GIB,
        "swap_bytes": 0,
        "shm_bytes": 16 * GIB,
        "cuda_usable": False,
        "accelerator": "cpu",
        "load": 0.2,
        "environment": {"MALLOC_MMAP_THRESHOLD_": "1073741824"},
        "memory_present_bytes": 32 * GIB,
        "libraries": {"pillow-simd": "12.1", "libjpeg-turbo": "3.2", "zlib-ng": "2.3", "simplejpeg": "1.9"},
    }
    return Machine(**{**facts, **changes})


def gpu_box(*, capability="9.0", **changes):
    device = Device(0, "H200", 139 * GIB, compute_capability=capability, driver="580.1")
    facts = {
        "torch": "2.14.1+cu130",
        "torch_cuda": "13.0",
        "devices": (device,),
        "cuda_usable": True,
        "accelerator": "cuda",
        "driver_cuda": "13.0",
        "torch_archs": ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    }
    return box(**{**facts, **changes})


def line(machine, topic, *, disk=None):
    return next(one for one in check(machine, disk=disk) if one.topic == topic)


def test_a_healthy_machine_is_good_in_every_line():
    for machine in (box(), gpu_box()):
        assert [one.topic for one in check(machine, disk=DISK) if one.state != "good"] == []


def test_whatever_is_not_good_has_a_remedy_and_every_line_is_one_sentence():
    machines = [
        box(torch=None, load=None, shm_bytes=64 << 20, cpu_features=(), num_cores=1.5, environment={}),
        box(libraries={}, memory_available_bytes=GIB, memory_present_bytes=64 * GIB, load=20.0),
        gpu_box(cuda_usable=None),
        gpu_box(cuda_usable=False, cuda_problem="CUDA unknown error"),
        box(num_nvidia_cards=1),
    ]
    for one in (one for machine in machines for one in check(machine, disk=DISK)):
        assert one.state == "good" or one.remedy, one
        assert one.text.endswith("."), one
        assert "\n" not in one.text, one


def test_no_gpu_is_said_plainly_and_is_no_fault():
    found = line(box(), "device")
    assert (found.state, found.text) == ("good", "No GPU: training runs on the CPU.")


def test_a_card_without_a_driver_is_found():
    found = line(box(num_nvidia_cards=2), "device")
    assert found.state == "bad"
    assert "--gpus all" in found.remedy


def test_a_driver_replaced_under_a_running_kernel_needs_a_reboot():
    found = line(box(device_problem="Driver/library version mismatch"), "device")
    assert (found.state, found.remedy) == ("bad", "Reboot to load the new driver.")


@pytest.mark.parametrize(
    ("driver_cuda", "capability", "index"),
    [
        ("13.0", "9.0", "cu130"),
        ("12.8", "9.0", "cu128"),
        ("12.4", "8.6", "cu126"),
        ("12.4", "12.0", "cu128"),
        ("13.0", "6.1", "cu126"),
        (None, "8.0", "cu126"),
    ],
)
def test_a_cpu_build_beside_a_gpu_gets_the_command_for_a_build_that_can(driver_cuda, capability, index):
    machine = gpu_box(
        torch="2.14.1+cpu", torch_cuda=None, cuda_usable=False, driver_cuda=driver_cuda, capability=capability
    )
    found = line(machine, "torch")
    assert found.state == "bad"
    expected = "pip install --upgrade --force-reinstall torch --index-url https://download.pytorch.org/whl/"
    assert found.remedy == f"`{expected}{index}`"


def test_torchvision_is_replaced_together_with_torch():
    libraries = {**box().libraries, "torchvision": "0.29"}
    found = line(gpu_box(torch_cuda=None, cuda_usable=False, libraries=libraries), "torch")
    assert "torch torchvision --index-url" in found.remedy


def test_a_driver_too_old_for_the_build_is_named_with_both_versions():
    found = line(gpu_box(cuda_usable=False, driver_cuda="12.4"), "torch")
    assert "needs a driver for CUDA 13.0; this one supports CUDA up to 12.4" in found.text
    assert "Update the NVIDIA driver, or `pip install" in found.remedy
    ancient = line(gpu_box(cuda_usable=False, driver_cuda="11.4"), "torch")
    assert ancient.remedy == "Update the NVIDIA driver."


def test_a_hidden_device_is_not_a_broken_one():
    found = line(gpu_box(cuda_usable=False, environment={"CUDA_VISIBLE_DEVICES": ""}), "torch")
    assert found.state == "warning"
    assert "CUDA_VISIBLE_DEVICES=''" in found.text


def test_torchs_own_reason_is_handed_on():
    found = line(gpu_box(cuda_usable=False, cuda_problem="CUDA unknown error."), "torch")
    assert "cannot use the device: CUDA unknown error." in found.text


def test_a_torch_that_does_not_import_is_bad_with_and_without_a_device():
    problem = "torch does not import: ImportError: no libfoo"
    for machine in (box(cuda_problem=problem), gpu_box(cuda_usable=None, cuda_problem=problem)):
        assert line(machine, "torch").state == "bad"


def test_an_old_device_without_kernels_gets_the_build_that_has_them():
    found = line(gpu_box(capability="6.1"), "torch")
    assert "no kernels for H200 (sm_61)" in found.text
    assert found.remedy.endswith("cu126`")


@pytest.mark.parametrize("capability", ["8.9", "9.0", "12.1"])
def test_kernels_of_the_same_major_version_serve_later_devices(capability):
    assert line(gpu_box(capability=capability), "torch").state == "good"


@pytest.mark.parametrize(
    ("capability", "text"),
    [
        ("6.1", "Compute capability 6.1: no tensor cores."),
        ("7.5", "Compute capability 7.5: tensor cores for fp16."),
        ("8.0", "Compute capability 8.0: tensor cores for fp16, TF32, bf16."),
        ("9.0", "Compute capability 9.0: tensor cores for fp16, TF32, bf16, fp8."),
    ],
)
def test_formats_follow_from_the_compute_capability(capability, text):
    assert line(gpu_box(capability=capability), "precision").text == text


def test_bf16_on_the_cpu_follows_from_its_features():
    assert "AMX" in line(box(cpu_features=("avx512", "amx_bf16")), "precision").text
    assert "no bf16" in line(box(cpu_features=("avx2",)), "precision").text
    assert line(box(cpu_features=()), "precision").state == "unknown"


def test_a_quota_is_named_and_openmp_would_start_too_many_threads():
    machine = box(num_cores=2.5)
    assert line(machine, "cores").text == "2.5 of 8 cores are usable: A CPU."
    assert line(machine, "threads").remedy == "`export OMP_NUM_THREADS=2`"


@pytest.mark.parametrize(("asked", "state"), [("16", "bad"), ("1", "warning"), ("8", "good"), ("4,2", "good")])
def test_the_number_of_openmp_threads_is_held_against_the_cores(asked, state):
    assert line(box(environment={"OMP_NUM_THREADS": asked}), "threads").state == state


def test_threads_told_to_spin_are_a_warning():
    found = [one for one in check(box(environment={"OMP_WAIT_POLICY": "ACTIVE"})) if one.topic == "threads"]
    assert [one.state for one in found] == ["good", "warning"]
    assert found[1].remedy == "`unset OMP_WAIT_POLICY`"


@pytest.mark.parametrize(
    ("environment", "state"),
    [
        ({}, "warning"),
        ({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, "good"),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, "good"),
        ({"MALLOC_TRIM_THRESHOLD_": "1"}, "good"),
    ],
)
def test_the_systems_allocator_is_a_warning_where_training_is_on_the_cpu(environment, state):
    assert line(box(environment=environment), "allocator").state == state
    assert line(gpu_box(environment=environment), "allocator").state == "good"


def test_a_system_without_shared_memory_or_glibc_gets_no_such_lines():
    topics = {one.topic for one in check(box(system="Darwin-24-arm64", shm_bytes=None))}
    assert topics.isdisjoint({"shared memory", "allocator", "disk"})


@pytest.mark.parametrize(("size", "state"), [(64 << 20, "bad"), (512 << 20, "warning"), (8 * GIB, "good")])
def test_dockers_default_shared_memory_is_bad(size, state):
    found = line(box(shm_bytes=size), "shared memory")
    assert found.state == state
    assert ("--shm-size" in found.remedy) == (state != "good")


def test_several_numa_nodes_are_named_with_what_binds_to_one():
    assert all(one.topic != "NUMA" for one in check(box()))
    two = line(box(num_numa_nodes=2), "NUMA")
    assert two.state == "unknown" and two.text.startswith("2 nodes") and "numactl" in two.remedy
    assert "torchrun --numa-binding node" in line(gpu_box(num_numa_nodes=2), "NUMA").remedy


def test_a_container_limit_on_memory_is_told_with_what_is_present():
    found = line(box(memory_bytes=4 * GIB, memory_available_bytes=3 * GIB), "memory")
    assert found.state == "warning"
    assert "4.0 GiB, 3.0 GiB available; limited by the container (the machine has 32.0 GiB)" in found.text


def test_memory_nearly_full_is_bad():
    assert line(box(memory_available_bytes=GIB), "memory").state == "bad"


def test_a_slow_disk_is_told_by_its_random_rate():
    slow = DiskSpeed("/data", "ext4", "hdd", 1.5e8, 1.2e7, 131072, 1 << 28, GIB)
    found = line(box(), "disk", disk=slow)
    assert found.state == "bad"
    assert (
        found.text == "/data, on a spinning disk (ext4): 143 MiB/s sequential, 11.4 MiB/s in random reads of 128 KiB."
    )


def test_an_unmeasured_disk_is_unknown_and_says_why():
    closed = DiskSpeed("/data", "nfs4", "network", None, None, 131072, 0, None, note="it cannot be written")
    found = line(box(), "disk", disk=closed)
    assert found.state == "unknown"
    assert found.text == "/data, on a network file system (nfs4): not measured: it cannot be written."


@pytest.mark.parametrize(
    ("missing", "state"), [("libjpeg-turbo", "bad"), ("zlib-ng", "warning"), ("simplejpeg", "warning")]
)
def test_a_slow_image_build_is_told(missing, state):
    libraries = {"pillow": "13.0", "libjpeg-turbo": "3.2", "zlib-ng": "2.3", "simplejpeg": "1.9"}
    del libraries[missing]
    assert line(box(libraries=libraries), "image decoding").state == state


@pytest.mark.parametrize(("load", "state"), [(0.5, "good"), (4.0, "warning"), (9.0, "bad"), (None, "unknown")])
def test_the_load_of_others_is_held_against_the_cores(load, state):
    assert line(box(load=load), "load").state == state


def test_pillow_without_vector_instructions_is_named_with_what_has_them():
    found = line(box(libraries={"pillow": "13.0.0"}, cpu_features=("avx2",)), "image resizing")
    assert found.state == "warning" and "pillow-simd" in found.remedy and "`resize`" in found.remedy
    assert line(box(libraries={"pillow-simd": "12.1.1"}), "image resizing").state == "good"
    without_avx2 = box(libraries={"pillow": "13.0.0"}, cpu_features=())
    assert "image resizing" not in {one.topic for one in check(without_avx2)}


def rates(*per_second, num_readers, bound):
    made = [ReadRate(number, 10, int(rate), 1.0, 0.05) for number, rate in zip((1, 4, 16), per_second)]
    return ReadRates("s3://bucket", "s3", tuple(made), num_readers, bound)


@pytest.mark.parametrize(
    ("found", "state", "text", "remedy"),
    [
        (rates(1e6, 4e6, 1e7, num_readers=16, bound="latency"), "warning", "16 or more hide", "num_workers=16"),
        (rates(1e6, 4e6, 4e6, num_readers=4, bound="latency"), "warning", "4 hide the latency", "num_workers=4"),
        (rates(1e8, 1e8, 1e8, num_readers=1, bound="bandwidth"), "good", "bandwidth-bound", "disk_cache"),
    ],
)
def test_one_sentence_says_how_many_readers_hide_the_latency(found, state, text, remedy):
    [one] = [one for one in check(box(), reads=found) if one.topic == "reads"]
    assert one.state == state and text in one.text and remedy in one.remedy
