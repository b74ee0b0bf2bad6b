"""The machine at rest: canned cgroups of both versions, canned /proc texts, and this machine."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hasten.cgroup import (
    CgroupFolders,
    CgroupMemory,
    find_folders,
    parse_throttled,
    read_memory,
    read_quota,
    read_throttled_seconds,
)
from hasten.machine import machine
from hasten.machine.machine import (
    measure_fault,
    parse_answer,
    parse_cpu_features,
    parse_cpu_name,
    parse_torch_version,
    pick_environment,
    read_machine,
)
from hasten.records import Machine, from_json, to_json

V1_MOUNTS = """31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V1_CGROUP = "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/docker/abc\n"
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n"


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_version_2_gives_every_level_up_to_the_root():
    found = find_folders("cpu", cgroup="0::/slice/job\n", mountinfo=V2_MOUNTS)
    root = Path("/sys/fs/cgroup")
    assert found == CgroupFolders(2, (root / "slice" / "job", root / "slice", root))


def test_version_1_holds_the_controller_on_a_hybrid_system():
    found = find_folders("cpu", cgroup=V1_CGROUP, mountinfo=V1_MOUNTS.format(root="/"))
    assert found.version == 1
    assert found.folders[0] == Path("/sys/fs/cgroup/cpu,cpuacct/docker/abc")


def test_a_container_that_sees_the_hosts_path_finds_its_own_mount():
    found = find_folders("memory", cgroup=V1_CGROUP, mountinfo=V1_MOUNTS.format(root="/docker/abc"))
    assert found == CgroupFolders(1, (Path("/sys/fs/cgroup/memory"),))


def test_no_cgroups_are_no_limits():
    assert find_folders("cpu", cgroup="", mountinfo="") is None
    assert (read_quota(None), read_memory(None), read_throttled_seconds(None)) == (None, None, None)


def test_the_tightest_quota_of_all_levels_binds(tmp_path):
    inner = write(tmp_path / "inner", cpu__max="max 100000\n")
    outer = write(tmp_path, cpu__max="150000 100000\n")
    assert read_quota(CgroupFolders(2, (inner, outer))) == 1.5


def test_a_version_1_quota_of_minus_one_is_none(tmp_path):
    folder = write(tmp_path, cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    assert read_quota(CgroupFolders(1, (folder,))) is None
    write(tmp_path, cpu__cfs_quota_us="50000\n")
    assert read_quota(CgroupFolders(1, (folder,))) == 0.5


def test_file_pages_count_as_available_within_a_limit(tmp_path):
    stat = "anon 500\nfile 300\ninactive_file 100\nactive_file 150\nshmem 50\n"
    folder = write(tmp_path, memory__max="1000\n", memory__current="800\n", memory__stat=stat)
    found = read_memory(CgroupFolders(2, (folder,)))
    assert found == CgroupMemory(limit=1000, available=450, page_cache=250)


def test_version_1_memory_counts_the_whole_hierarchy(tmp_path):
    stat = "inactive_file 1\nactive_file 1\ntotal_inactive_file 100\ntotal_active_file 50\n"
    folder = write(tmp_path, memory__limit_in_bytes="1000", memory__usage_in_bytes="900", memory__stat=stat)
    assert read_memory(CgroupFolders(1, (folder,))).available == 250


@pytest.mark.parametrize(
    ("version", "files"),
    [
        (2, {"memory__max": "max", "memory__current": "5"}),
        (1, {"memory__limit_in_bytes": "9223372036854771712", "memory__usage_in_bytes": "5"}),
        (2, {}),
    ],
)
def test_no_memory_limit_is_none(tmp_path, version, files):
    assert read_memory(CgroupFolders(version, (write(tmp_path, **files),))) is None


def test_throttling_is_told_in_other_units_by_each_version(tmp_path):
    assert parse_throttled("nr_periods 9\nnr_throttled 3\nthrottled_usec 2500000\n") == 2.5
    assert parse_throttled("nr_periods 9\nnr_throttled 3\nthrottled_time 2500000000\n") == 2.5
    assert parse_throttled("usage_usec 5\n") is None


def test_the_throttling_of_every_level_adds_up(tmp_path):
    inner = write(tmp_path / "inner", cpu__stat="throttled_usec 1000000\n")
    outer = write(tmp_path, cpu__stat="throttled_usec 500000\n")
    assert read_throttled_seconds(CgroupFolders(2, (inner, outer))) == 1.5


def test_the_instruction_sets_that_training_profits_from_are_named():
    text = "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16\n"
    assert parse_cpu_name(text) == "A CPU"
    assert parse_cpu_features(text) == ("avx2", "avx512", "avx512_bf16", "amx_bf16")


def test_an_arm_cpu_has_no_model_name_but_features():
    text = "processor\t: 0\nFeatures\t: fp asimd bf16\n"
    assert parse_cpu_name(text) is None
    assert parse_cpu_features(text) == ("neon", "neon_bf16")


def test_a_system_without_cpuinfo_tells_no_features():
    assert parse_cpu_features("") == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '2.14.1+cu130'\ncuda: Optional[str] = '13.0'\n", ("2.14.1+cu130", "13.0")),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\n", ("2.13.0+cpu", None)),
        ("nothing", (None, None)),
    ],
)
def test_torchs_build_is_read_from_its_file(text, expected):
    assert parse_torch_version(text) == expected


def test_torchs_answer_is_its_last_line():
    answer = parse_answer('hello\n{"cuda": true, "problem": null, "accelerator": "cuda", "archs": ["sm_90"]}\n')
    assert (answer.cuda, answer.accelerator, answer.archs) == (True, "cuda", ("sm_90",))


def test_a_torch_that_does_not_import_says_why():
    answer = parse_answer("", errors="Traceback\nImportError: libcudart.so.13: not found\n")
    assert answer.cuda is None
    assert answer.problem == "torch does not import: ImportError: libcudart.so.13: not found"


def test_only_variables_that_bear_on_speed_are_kept():
    seen = {
        "OMP_NUM_THREADS": "4",
        "HOME": "/root",
        "LD_PRELOAD": "x",
        "NVIDIA_API_KEY": "k",
        "CUDA_TOKEN": "t",
    }
    assert pick_environment(seen) == {"LD_PRELOAD": "x", "OMP_NUM_THREADS": "4"}


def test_numa_nodes_are_those_with_cores(tmp_path):
    for node, cores in enumerate(("0-7", "8-15", "")):  # the third is memory only
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cores + "\n")
    assert machine._num_numa_nodes(tmp_path) == 2
    assert machine._num_numa_nodes(tmp_path / "absent") == 1


def test_nvidia_cards_are_counted_without_a_driver(tmp_path):
    write(tmp_path / "0000:01:00.0", vendor="0x10de\n", **{"class": "0x030000\n"})
    write(tmp_path / "0000:01:00.1", vendor="0x10de\n", **{"class": "0x040300\n"})  # its sound
    write(tmp_path / "0000:02:00.0", vendor="0x8086\n", **{"class": "0x030000\n"})
    assert machine._num_nvidia_cards(tmp_path) == 1
    assert machine._num_nvidia_cards(tmp_path / "absent") is None


def test_a_page_fault_takes_between_a_tenth_and_a_hundred_microseconds():
    each = measure_fault()
    assert each is not None and 1e-7 < each < 1e-4


def test_pages_that_come_in_larger_ones_are_not_taken_for_cheap_faults(monkeypatch):
    counted = SimpleNamespace(ru_minflt=7)
    monkeypatch.setattr("resource.getrusage", lambda _who: counted)
    assert measure_fault() is None


def test_this_machine_is_read_without_importing_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = read_machine()
    assert "torch" not in sys.modules
    assert found.torch is not None
    assert 0 < found.num_cores <= found.num_cores_present
    assert 0 < found.memory_available_bytes <= found.memory_bytes
    assert found.cuda_usable is None
    assert from_json(Machine, to_json(found)) == found
