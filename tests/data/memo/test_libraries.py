"""Each memoized library call equals the plain call, and reads a changed file again."""

import contextlib
import importlib
import importlib.util
import os
import pickle
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hasten.data.memo import arrays, calls, volumes
from hasten.data.memo.memo import open_memo
from hasten.data.memo.table import memoizing, release_of

sys.path.append(str(Path(__file__).parent))  # for library_files.py

from library_files import READS, described, hits, leaves, outcome, overwrite, write_png, write_wave

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:UserWarning")


@pytest.fixture(autouse=True)
def memo(monkeypatch):
    monkeypatch.setattr("hasten.data.memo.keys.QUIET_SECONDS", 0.0)
    made = open_memo(ram="16 MiB", disk=None)
    yield made
    made.close()


@pytest.fixture(params=READS)
def case(request, tmp_path):
    suffix, write, read = READS[request.param]
    path = tmp_path / suffix
    write(path, 1)
    time.sleep(0.005)
    return SimpleNamespace(name=request.param, path=path, write=write, read=lambda: read(path))


def test_a_memoized_call_equals_the_plain_call(case, memo):
    plain = described(case.read())
    with memoizing(memo):
        first, first_hits = hits(memo, case.read)
        assert described(first) == plain
        assert first_hits == 0
        overwrite(first)
        second, second_hits = hits(memo, case.read)
        assert described(second) == plain
        assert second_hits == max(1, len([one for one in leaves(second)]) if "archive" in case.name else 1)
        overwrite(second)
        assert described(case.read()) == plain
    assert described(case.read()) == plain


@pytest.mark.parametrize("change", ["rewritten", "replaced", "switched"])
def test_a_file_that_changed_is_read_again(case, memo, change):
    with memoizing(memo):
        if change == "switched":
            actual = case.path.with_name("other" + "".join(case.path.suffixes))
            case.path.rename(actual)
            case.path.symlink_to(actual)
        before = described(case.read())
        time.sleep(0.01)
        new = case.path.with_name("new" + "".join(case.path.suffixes))
        case.write(new, 2)
        if change == "rewritten":
            case.path.write_bytes(new.read_bytes())
        elif change == "replaced":
            os.replace(new, case.path)
        else:
            case.path.unlink()
            case.path.symlink_to(new)
        time.sleep(0.01)
        after = described(case.read())
        assert after == described(case.read())
    assert after == described(case.read())
    assert after != before


def test_a_file_changed_without_changing_its_mtime_is_read_again(tmp_path, memo):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(4))
    os.utime(path, (1, 1))
    time.sleep(0.01)
    with memoizing(memo):
        np.load(path)
        np.save(path, np.ones(4))
        os.utime(path, (1, 1))
        time.sleep(0.01)
        assert np.load(path).tolist() == [1] * 4


def test_a_file_that_changes_while_it_is_read_is_not_cached(tmp_path, memo):
    path = tmp_path / "a.bin"
    path.write_bytes(b"1")

    def read(path):
        time.sleep(0.01)
        value = np.frombuffer(path.read_bytes(), np.uint8)
        path.write_bytes(b"22")
        return value

    function = calls.memoized(read, "read", b"", calls.Call("path"))
    with memoizing(memo):
        time.sleep(0.01)
        function(path)
        assert memo.counts().tiers[0].num_fills == 0


@pytest.mark.parametrize("damage", ["missing", "cut", "noise", "empty"])
def test_a_file_that_cannot_be_read_fails_like_the_plain_call(case, memo, damage):
    data = case.path.read_bytes()
    damaged = {"cut": data[: len(data) // 2], "noise": bytes(RNG.integers(0, 256, 300, np.uint8)), "empty": b""}
    if damage == "missing":
        case.path.unlink()
    else:
        case.path.write_bytes(damaged[damage])
    time.sleep(0.005)
    plain = outcome(case.read)
    with memoizing(memo):
        assert [outcome(case.read) for _ in range(3)] == [plain] * 3


def test_functions_are_patched_wherever_they_are_exported_and_restored(memo):
    import skimage.io
    import torchvision.io

    places = [
        (np, "load"),
        (torch, "load"),
        (torch.serialization, "load"),
        (torchvision.io, "read_image"),
        (torchvision.io.image, "read_image"),
        (np.lib.npyio.NpzFile, "__getitem__"),
    ]
    before = [getattr(*place) for place in places]
    with memoizing(memo):
        from torchvision.io import read_image

        inside = [getattr(*place) for place in places]
        assert read_image.__wrapped__ is before[3]
        assert all(new is not old for new, old in zip(inside, before))
        assert inside[1] is inside[2]
        assert inside[3] is inside[4]
        for function in inside[:5]:
            assert pickle.loads(pickle.dumps(function)) is function
    assert [getattr(*place) for place in places] == before
    assert callable(skimage.io.imread)


def test_calls_with_other_than_plain_arguments_run_unchanged(tmp_path, memo):
    cv2 = pytest.importorskip("cv2")
    path = str(tmp_path / "a.png")
    write_png(path, 1)
    time.sleep(0.005)

    class Text(str):
        pass

    class Data(bytes):
        pass

    data = Data((tmp_path / "a.png").read_bytes())
    out = np.zeros((24, 20, 3), np.uint8)
    with memoizing(memo):
        for _ in range(2):
            assert cv2.imread(Text(path)) is not None
            assert cv2.imread(path, out, 1) is out
            assert outcome(lambda: cv2.imdecode(data, 1))
    assert memo.counts().num_misses == 0


@pytest.mark.parametrize(
    "values",
    [(1, True, 1.0, "1", np.int64(1), np.float32(1)), ((1,), [1]), (int, "int", np.int8), ("f4", np.dtype("f4"))],
)
def test_arguments_that_differ_are_described_differently(values):
    found = [calls.describe(value) for value in values]
    assert None not in found
    assert len(set(found)) == len(values)


def test_mutable_arguments_are_not_described():
    class Mine(int):
        pass

    for value in (object(), len, lambda: 1, np.zeros(1), torch.zeros(1), {1: 2}, Mine(1), [Mine(1)], Mine):
        assert calls.describe(value) is None


def test_a_function_that_the_user_replaced_is_left_alone(monkeypatch, memo):
    cv2 = pytest.importorskip("cv2")
    original = cv2.imread

    def mine(*arguments):
        return original(*arguments)

    mine.__module__ = "cv2"

    def load(*arguments, **named):
        return np.zeros(1)

    load.__module__ = "numpy"
    monkeypatch.setattr(cv2, "imread", mine)
    monkeypatch.setattr(np, "load", load)
    with memoizing(memo):
        assert cv2.imread is mine
        assert np.load is load


@pytest.mark.parametrize("name", ["cv2", "tifffile", "soundfile", "nibabel"])
def test_a_module_of_the_users_with_the_same_name_is_left_alone(tmp_path, name):
    (tmp_path / f"{name}.py").write_text("def imread(path): return 1\n")
    spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    distributions = dict(row[:2] for row in (*arrays.ROWS, *volumes.ROWS)).get(name, (name,))
    assert release_of(module, distributions) is None


@contextlib.contextmanager
def forgetting(module):
    yield
    sys.modules.pop(module, None)


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_library_imported_before_or_while_calls_are_memoized_is_seen(tmp_path, memo, monkeypatch, when):
    site = tmp_path / "site"
    (site / "torchaudio").mkdir(parents=True)
    (site / "torchaudio-9.9.dist-info").mkdir()
    (site / "torchaudio-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torchaudio\nVersion: 9.9\n"
    )
    lines = [
        "import soundfile, torch",
        "def load(uri, frame_offset=0, num_frames=-1, normalize=True, channels_first=True):",
    ]
    lines += [
        " data, rate = soundfile.read(uri, num_frames, frame_offset)",
        " return torch.from_numpy(data).t(), rate",
    ]
    (site / "torchaudio" / "__init__.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "torchaudio", raising=False)
    path = tmp_path / "a.flac"
    write_wave(path, 1)
    time.sleep(0.005)
    if when == "before":
        importlib.import_module("torchaudio")
    with forgetting("torchaudio"), memoizing(memo):
        torchaudio = importlib.import_module("torchaudio")
        plain = described(torchaudio.load(path))
        again, num_hits = hits(memo, lambda: torchaudio.load(path))
        assert described(again) == plain
        assert num_hits == 1
        assert hits(memo, lambda: torchaudio.load(path, num_frames=50)[0].shape)[0] == (2, 50)
        assert hits(memo, lambda: torchaudio.load(path, normalize=False))[1] == 0


def test_values_that_cannot_be_stored_exactly_are_computed_each_time(tmp_path, memo):
    values = [np.zeros((0, 3), order="F"), np.zeros(3, [("a", "i4")]), np.array([1, "a"], object)]
    for number, value in enumerate(values):
        np.save(tmp_path / f"{number}.npy", value)
    time.sleep(0.005)
    for number in range(len(values)):
        plain = np.load(tmp_path / f"{number}.npy", allow_pickle=True)
        with memoizing(memo):
            for _ in range(2):
                found = np.load(tmp_path / f"{number}.npy", allow_pickle=True)
                assert (found.dtype, found.strides) == (plain.dtype, plain.strides)
    assert memo.counts().tiers[0].num_fills == 0


def test_every_row_names_existing_functions():
    for module, distributions, _ in (*arrays.ROWS, *volumes.ROWS):
        with contextlib.suppress(ImportError):
            assert release_of(importlib.import_module(module), distributions), module


def test_the_packages_of_a_jupyter_kernel_are_installed_ones(monkeypatch):
    """The kernel is a script in the folder of the packages; a folder of the user's own is still none."""
    import PIL.Image

    packages = os.path.dirname(os.path.dirname(PIL.__file__))
    monkeypatch.setattr(sys, "argv", [os.path.join(packages, "ipykernel_launcher.py")])
    assert release_of(PIL.Image, ("pillow",)) is not None
