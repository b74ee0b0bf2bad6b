"""Nested stages on a fake clock, and the timing of real transforms that must not change what they give."""

import builtins
import importlib
import io
import random
import sys

import pytest

from hasten.agent import libraries, stages
from hasten.agent.stages import StageClock, clock


class FakeTime:
    def __init__(self, monkeypatch):
        self.at = 0.0
        monkeypatch.setattr(stages, "perf_counter", lambda: self.at)
        monkeypatch.setattr(stages, "thread_time", lambda: self.at / 2)

    def work(self, seconds):
        self.at += seconds


@pytest.fixture
def time(monkeypatch):
    return FakeTime(monkeypatch)


def seconds(totals):
    return {key: t.seconds for key, t in totals.items()}


def test_a_stage_within_another_counts_for_itself_only(time):
    timer = StageClock()
    read = timer.timed(lambda: time.work(2.0), "read", "file")

    def decode():
        time.work(1.0)
        read()
        read()

    timer.begin()
    timer.timed(decode, "decode", "Pillow")()
    totals = timer.end()
    assert seconds(totals) == {("read", "file"): 4.0, ("decode", "Pillow"): 1.0}
    assert totals["read", "file"].calls == 2
    assert totals["read", "file"].cpu == 2.0


def test_a_stage_within_one_of_the_same_name_is_part_of_it(time):
    timer = StageClock()
    inner = timer.timed(lambda: time.work(1.0), "transform", "Resize")
    outer = timer.timed(inner, "transform", "RandomResizedCrop")
    timer.begin()
    outer()
    assert seconds(timer.end()) == {("transform", "RandomResizedCrop"): 1.0}


def test_the_stages_of_a_batch_sum_to_its_time(time):
    timer = StageClock()
    transform = timer.timed(lambda: time.work(1.0), "transform", "Flip")
    timer.begin()
    timer.push("getitem")
    time.work(0.5)
    transform()
    time.work(0.25)
    timer.pop(("getitem", ""))
    assert seconds(timer.end()) == {("transform", "Flip"): 1.0, ("getitem", ""): 0.75}


def test_a_stage_that_raises_is_closed(time):
    timer = StageClock()

    def fail():
        time.work(1.0)
        raise OSError("gone")

    timer.begin()
    with pytest.raises(OSError, match="gone"):
        timer.timed(fail, "read", "file")()
    assert not timer.is_open("read")
    assert seconds(timer.end()) == {("read", "file"): 1.0}


def test_bytes_are_those_of_the_result(time):
    timer = StageClock()
    timer.begin()
    assert timer.timed(lambda: b"abc", "read", "file", size=len)() == b"abc"
    assert timer.end()["read", "file"].num_bytes == 3


def test_while_no_batch_is_timed_nothing_is_kept(time):
    timer = StageClock()
    timer.timed(lambda: time.work(1.0), "read", "file")()
    assert timer.totals == {}


# ------------------------------------------------------------------------------------------- real libraries


@pytest.fixture
def timed(patches):
    """The libraries' functions timed; a function that runs something as one batch and gives its stages."""
    libraries.install(patches)

    def run(function):
        clock.begin()
        try:
            value = function()
        finally:
            totals = clock.end()
        return value, {key: t.calls for key, t in totals.items()}

    yield run
    clock.end()


@pytest.fixture
def picture(tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "film.png"
    image.effect_noise((64, 48), 40).save(path)
    return path


def test_reading_a_file_gives_what_it_gave_and_its_bytes_are_counted(timed, tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(200)))

    def read():
        with open(path, "rb") as file:
            return file.read(), file, file.mode, file.name

    (value, kept, *described), calls = timed(read)
    plain_value, plain, *as_described = read()
    assert (value, described) == (plain_value, as_described)
    assert isinstance(kept, type(plain))
    assert calls["read", "file"] >= 2


@pytest.mark.parametrize("mode", ["r", "rt"])
def test_text_files_are_read_line_by_line_as_before(timed, tmp_path, mode):
    path = tmp_path / "labels.csv"
    path.write_text("a,b\n1,2\n3,é\n", encoding="utf-8")

    def read():
        with open(path, mode, encoding="utf-8") as file:
            return list(file), file.mode, file.name, file.encoding

    with open(path, mode, encoding="utf-8") as file:
        plain = list(file), file.mode, file.name, file.encoding
    assert timed(read)[0] == plain


@pytest.mark.parametrize("arguments", [("no/such/file",), ("no/such/file", "rb"), (".", "rb")])
def test_a_file_that_cannot_be_opened_raises_what_it_raised(timed, arguments):
    def error(opener):
        with pytest.raises(OSError) as caught:
            opener(*arguments)
        return type(caught.value), caught.value.errno, caught.value.filename

    assert timed(lambda: error(builtins.open))[0] == error(builtins.open)


def test_a_file_that_was_read_is_remembered_once(timed, picture):
    libraries.take_files()
    timed(lambda: [open(picture, "rb").close() for _ in range(3)])
    assert libraries.take_files().count(str(picture)) <= 1


def test_decoding_gives_the_same_pixels_and_is_named(timed, picture):
    from PIL import Image

    with Image.open(picture) as image:
        plain = image.convert("RGB").tobytes()

    def decode():
        with open(picture, "rb") as file:
            return Image.open(file).convert("RGB")

    value, calls = timed(decode)
    assert value.tobytes() == plain
    assert ("decode", "Pillow PNG") in calls
    assert ("transform", "Image.convert") in calls
    assert calls["decode", "Pillow PNG"] == 1


def test_pillow_opens_a_path_by_itself_and_keeps_its_class(timed, picture):
    from PIL import Image, PngImagePlugin

    value, _ = timed(lambda: Image.open(picture))
    assert isinstance(value, PngImagePlugin.PngImageFile)
    value.close()


def composed(version):
    transforms = pytest.importorskip("torchvision.transforms" if version == 1 else "torchvision.transforms.v2")
    steps = [transforms.Resize(20), transforms.RandomCrop(16), transforms.RandomHorizontalFlip()]
    steps += [transforms.ToTensor()] if version == 1 else [transforms.PILToTensor()]
    return transforms.Compose(steps), steps


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("version", [1, 2])
def test_a_compose_gives_the_same_values_and_its_transforms_are_named(timed, picture, version):
    import torch
    from PIL import Image

    compose, steps = composed(version)
    image = Image.open(picture).convert("RGB")

    def run():
        torch.manual_seed(5)
        random.seed(5)
        return compose(image)

    plain = run()
    value, calls = timed(run)
    assert torch.equal(value, plain)
    named = {detail for stage, detail in calls if stage == "transform"}
    assert {type(s).__name__ for s in steps} <= named
    assert all(kept is given for kept, given in zip(compose.transforms, steps)), "the list is the user's own again"


@pytest.mark.parametrize("version", [1, 2])
def test_while_it_is_timed_a_transform_passes_for_itself(timed, picture, version):
    from PIL import Image

    compose, steps = composed(version)
    seen = []

    class Look:
        def __call__(self, image):
            seen.extend((isinstance(t, type(s)), t.__class__) for t, s in zip(compose.transforms, steps))
            return image

    compose.transforms = [*compose.transforms[:1], Look()]
    steps = [steps[0], compose.transforms[1]]
    timed(lambda: compose(Image.open(picture)))
    assert [kind for kind, _ in seen] == [True, True]


class Told:
    """In the place of Patches: what a row of the cache's table would replace."""

    def __init__(self):
        self.replaced = set()

    def set(self, owner, name, replacement):
        self.replaced.add((owner, name))

    def after_import(self, module, action):
        pass

    def on_undo(self, action):
        pass


def test_the_functions_timed_as_kept_are_those_that_the_cache_keeps():
    from hasten.data.memo import image_source, table

    cached, rows = set(), set()
    beside = {"__init__", "asarray"}  # they look where an array comes from
    for row in table.TABLE[1:]:  # images of Pillow, the first, are told by their formats
        if row.module.startswith("fsspec"):
            continue  # it keeps bytes, which other rows read
        told = Told()
        try:
            table._install_row(told, row, importlib.import_module(row.module))
        except ImportError:
            continue
        rows.add(row.module)
        own = {
            (owner, name) for owner, name in told.replaced if isinstance(owner, type) or owner.__name__ == row.module
        }
        cached |= {(owner, name) for owner, name in own if name not in beside}
    timed = set()
    for place, names in (*libraries.KEPT_READ.items(), *libraries.KEPT_DECODE.items()):
        module, _, owner = place.partition(":")
        found = sys.modules.get(module)
        found = getattr(found, owner) if found is not None and owner else found
        if found is not None and (owner or module in rows):  # not where a library's functions are at home
            timed |= {(found, name) for name in names}
    assert cached == timed
    assert {*libraries.KEPT_FORMATS} == image_source.FORMATS


def test_what_cannot_be_kept_is_named_by_its_function(timed, tmp_path):
    import numpy as np

    np.save(tmp_path / "values.npy", np.arange(4.0))
    np.arange(4.0).tofile(tmp_path / "values.raw")
    _, calls = timed(lambda: (np.load(tmp_path / "values.npy"), np.fromfile(tmp_path / "values.raw")))
    assert calls["read", "numpy"] == 1 and ("read", "numpy") in libraries.KEPT
    assert calls["read", "numpy.fromfile"] == 1 and ("read", "numpy.fromfile") not in libraries.KEPT


def test_the_pixels_of_a_dicom_file_are_decoding_and_its_header_is_reading(timed, tmp_path):
    pydicom = pytest.importorskip("pydicom")
    uid = pydicom.uid
    meta = pydicom.dataset.FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = uid.CTImageStorage, uid.generate_uid()
    meta.TransferSyntaxUID = uid.ExplicitVRLittleEndian
    film = pydicom.dataset.FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    film.SOPClassUID, film.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    film.Rows, film.Columns, film.SamplesPerPixel, film.PhotometricInterpretation = 4, 6, 1, "MONOCHROME2"
    film.BitsAllocated, film.BitsStored, film.HighBit, film.PixelRepresentation = 16, 16, 15, 0
    film.PixelData = bytes(range(48))
    film.compress(uid.RLELossless)
    film.save_as(tmp_path / "film.dcm", enforce_file_format=True)
    value, calls = timed(lambda: pydicom.dcmread(tmp_path / "film.dcm").pixel_array)
    assert value.tobytes() == bytes(range(48))
    assert calls["read", "pydicom"] == 1 and calls["decode", "pydicom"] == 1


def test_after_undo_every_function_is_its_librarys_own(timed, patches, picture):
    from PIL import Image, ImageFile

    patches.undo()
    assert ImageFile.ImageFile.load.__code__.co_filename == ImageFile.__file__
    assert Image.Image.resize.__code__.co_filename == Image.__file__
    assert builtins.open is __import__("io").open


def test_a_file_is_opened_where_the_view_says_that_it_is(timed, picture):
    """Where an earlier patch of `open` leads elsewhere, as the sandbox's does."""
    moved = picture.with_name("moved")
    picture.rename(moved)
    opened = libraries._timed_open(lambda *_: io.FileIO(moved))
    found, _ = timed(lambda: opened(str(picture), "rb"))
    with found:
        assert found.read() == moved.read_bytes()
