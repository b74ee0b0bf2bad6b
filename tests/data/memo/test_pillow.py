"""Images are the same with and without a memo, whatever operations are applied."""

import copy
import gc
import inspect
import io
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFile, ImageFilter, ImageOps
from torchvision import transforms as T
from torchvision.datasets.folder import default_loader

sys.path.append(str(Path(__file__).parent))  # for adversaries.py

from adversaries import FILES, OPERATIONS, QUIET, attempt, image_bytes, look

from hasten.agent import libraries
from hasten.agent.handle import Handle
from hasten.agent.models import Models
from hasten.data.memo import keys, pillow, table
from hasten.data.memo.disk import DiskTier
from hasten.data.memo.memo import Memo, use_in_process, using
from hasten.data.memo.ram import RamTier
from hasten.data.memo.table import memoizing
from hasten.patches import Patches

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is shared through a memfd")

MEMOIZED = [
    number for number, (extension, _, _) in enumerate(FILES) if extension in ("jpg", "png", "bmp", "ppm", "jp2")
]
SIZE = (40, 30)


@pytest.fixture(autouse=True)
def short_quiet(monkeypatch):
    monkeypatch.setattr(keys, "QUIET_SECONDS", QUIET)


@pytest.fixture
def memo(monkeypatch):
    monkeypatch.setattr("hasten.data.memo.ram.available_memory", lambda: 1 << 50)
    made = Memo(RamTier(16 << 20))
    with memoizing(made):
        yield made
    made.close()


@pytest.fixture
def folder(tmp_path):
    for kind, (extension, mode, _) in enumerate(FILES):
        (tmp_path / f"{kind}-{mode.replace(';', '')}.{extension}").write_bytes(image_bytes(kind, kind, SIZE))
    time.sleep(QUIET * 1.3)
    return tmp_path


@pytest.fixture
def photo(tmp_path):
    """Return the path of a JPEG file that has not changed for a while."""
    return made_photo(tmp_path / "photo.jpg")


def made_photo(path, seed=5, kind=0):
    path.write_bytes(image_bytes(kind, seed, SIZE))
    time.sleep(QUIET * 1.3)
    return path


def hits(memo):
    return memo.counts().tiers[0].num_hits


def assert_same(function, *arguments, epochs=3):
    """Check that everything observable of a function's result is, in each epoch, as without a memo."""
    with using(None):
        plain = attempt(lambda: function(*arguments))
    for epoch in range(epochs):
        assert attempt(lambda: function(*arguments)) == plain, f"epoch {epoch}"
    return plain


def traced(*steps):
    """Return what each of several statements returns or raises; later ones use earlier results in `found`."""

    def function(path):
        found, seen = [], []
        for step in steps:
            try:
                found.append(step(path, found))
                seen.append(look(found[-1]))
            except Exception as error:
                found.append(None)
                seen.append(look(error))
        return seen

    return function


def loaded(path):
    image = Image.open(path)
    image.load()
    return image


PIPELINES = {
    "asarray": lambda path: np.asarray(Image.open(path)),
    "array": lambda path: np.array(Image.open(path).convert("RGB")),
    "convert": lambda path: Image.open(path).convert("RGB"),
    "gray": lambda path: Image.open(path).convert("L"),
    "gray by way of color": lambda path: Image.open(path).convert("RGB").convert("L").resize((9, 9)),
    "resize": lambda path: Image.open(path).resize((11, 13)),
    "resize then convert": lambda path: Image.open(path).resize((11, 13), Image.Resampling.BILINEAR).convert("RGB"),
    "convert then resize": lambda path: Image.open(path).convert("RGB").resize((11, 13), Image.Resampling.LANCZOS),
    "crop": lambda path: Image.open(path).convert("RGB").crop((3, 4, 20, 21)),
    "crop then resize": lambda path: Image.open(path).convert("RGB").crop((3, 4, 20, 21)).resize((8, 8)),
    "resize then crop": lambda path: Image.open(path).convert("RGB").resize((30, 30)).crop((3, 4, 20, 21)),
    "loaded first": lambda path: loaded(path).convert("RGB").resize((11, 13)),
    "loaded and used": lambda path: [loaded(path).load()[3, 4], loaded(path)],
    "crop twice": lambda path: Image.open(path).convert("RGB").crop((3, 4, 20, 21)).crop((1, 1, 5, 5)),
    "crop beyond": lambda path: Image.open(path).convert("RGB").crop((-3, 4, 50, 21)),
    "flip": lambda path: Image.open(path).convert("RGB").transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "flip then resize": lambda path: Image.open(path).transpose(Image.Transpose.FLIP_LEFT_RIGHT).resize((8, 8)),
    "tensor": lambda path: T.Compose([T.Resize(16), T.CenterCrop(12), T.ToTensor()])(Image.open(path).convert("RGB")),
    "default loader": lambda path: T.Compose([T.Resize((16, 12)), T.PILToTensor()])(default_loader(path)),
    "rotate": lambda path: Image.open(path).convert("RGB").rotate(20, expand=True),
    "blur": lambda path: Image.open(path).convert("RGB").filter(ImageFilter.GaussianBlur(2)),
    "quantize": lambda path: Image.open(path).convert("RGB").resize((20, 20)).quantize(16),
    "upright": lambda path: ImageOps.exif_transpose(Image.open(path)).convert("RGB"),
    "upright after": lambda path: ImageOps.exif_transpose(Image.open(path).convert("RGB")),
    "thumbnail": lambda path: (lambda image: image.thumbnail((16, 16)) or image)(Image.open(path)),
    "thumbnail after": lambda path: (
        lambda image: image.thumbnail((16, 16), reducing_gap=None) or (image, image.convert("L"))
    )(Image.open(path).convert("RGB")),
    "draft": lambda path: (lambda image: image.draft("L", (8, 8)) and image.convert("RGB"))(Image.open(path)),
    "second frame": lambda path: (lambda image: image.seek(1) or image.convert("RGB"))(Image.open(path)),
    "first frame again": lambda path: (lambda image: (image.seek(1), image.seek(0), image.convert("RGB")))(
        Image.open(path)
    ),
    "second frame late": lambda path: (
        lambda image: [image.convert("RGB"), image.seek(1), image.convert("RGB"), image.tell()]
    )(Image.open(path)),
    "opened image after": lambda path: (lambda image: [image.convert("L"), image, image.info, image.tell()])(
        Image.open(path)
    ),
    "exif": lambda path: (lambda image: [dict(image.convert("RGB").getexif()), dict(image.getexif())])(
        Image.open(path)
    ),
    "pillow's own look": lambda path: (
        lambda image: [
            image.getcolors(9999),
            image.getbbox(),
            image.histogram(),
            image.getextrema(),
            image.getprojection(),
        ]
    )(Image.open(path).convert("RGB")),
    "bands": lambda path: Image.open(path).convert("RGB").split(),
    "equality": lambda path: Image.open(path).convert("RGB") == Image.open(path).convert("RGB"),
}


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=[name.replace(" ", "_") for name in PIPELINES])
def test_every_format_is_the_same_through_every_pipeline(pipeline, folder, memo):
    for path in sorted(folder.iterdir()):
        assert_same(pipeline, path, epochs=4)


def test_the_common_formats_are_computed_once(folder, memo):
    for kind in MEMOIZED:
        if FILES[kind][2].get("frames") or FILES[kind][:2] == ("bmp", "L"):
            continue  # Pillow maps the latter
        (path,) = folder.glob(f"{kind}-*")
        for pipeline in (PIPELINES["asarray"], PIPELINES["tensor"]):
            before = memo.counts()
            for _ in range(5):
                pipeline(path)
            after = memo.counts()
            assert after.num_misses - before.num_misses <= 2, path
            assert after.tiers[0].num_hits - before.tiers[0].num_hits >= 4, path


def test_crops_of_different_files_do_not_share_a_result(folder, memo):
    paths = [made_photo(folder / f"photo{number}.png", seed=number, kind=5) for number in range(4)]

    def cut(path):
        return Image.open(path).convert("RGB").crop((2, 2, 12, 12)).resize((5, 5))

    for path in paths * 3:
        assert_same(cut, path)
    assert hits(memo)


WRITES = {
    "drawn": lambda image: ImageDraw.Draw(image).rectangle((1, 1, 9, 9), fill=3),
    "pasted": lambda image: image.paste(7, (2, 2, 9, 9)),
    "put": lambda image: image.putpixel((3, 3), 9),
    "alpha": lambda image: image.putalpha(9),
    "access": lambda image: image.load().__setitem__((1, 1), image.load()[5, 5]),
    "data": lambda image: image.putdata(list(image.getchannel(0).tobytes())) if image.mode == "L" else None,
    "bytes": lambda image: image.frombytes(bytes(len(image.tobytes()))),
    "palette": lambda image: image.putpalette(bytes(range(256)) * 3),
    "core": lambda image: image.im.putpixel((2, 2), 9),
    "upright": lambda image: ImageOps.exif_transpose(image, in_place=True),
    "small": lambda image: image.thumbnail((9, 9), reducing_gap=None),
    "fitted": lambda image: image.thumbnail((9, 9)),
    "info": lambda image: image.info.update(transparency=4, more=[1]),
    "closed": lambda image: image.close(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("kind", [1, 0, 3, 5, 8], ids=lambda kind: "-".join(map(str, FILES[kind][:2])))
def test_writing_to_an_image_does_not_change_the_cache(write, kind, tmp_path, memo):
    path = made_photo(tmp_path / f"photo.{FILES[kind][0]}", kind=kind)

    def written(path, clean):
        image = Image.open(path)
        if not clean:
            write(image)
        image = image.convert("L" if image.mode == "L" else "RGB")
        write(image)
        small = image.resize((10, 8))
        write(small)
        return [small.resize((5, 5)), small, image, image.convert("L").resize((4, 4))]

    def clean(path):
        return [Image.open(path).convert("RGB").resize((10, 8)), Image.open(path).convert("L").resize((10, 8))]

    for _ in range(2):
        assert_same(written, path, True)
        assert_same(written, path, False)
        assert_same(clean, path)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_modified_images_do_not_change_later_results(name, photo, memo):
    import random
    from types import SimpleNamespace

    def done(seed):
        dataset = SimpleNamespace(size=(11, 9), seen=[], kept=[], path=str(photo), root=str(photo.parent))
        image = OPERATIONS[name](Image.open(photo), random.Random(seed), dataset)
        return [image, image.convert("RGB"), image.convert("RGB").resize((6, 6)), dataset.seen]

    for seed in range(4):
        assert_same(done, seed)
        assert_same(PIPELINES["convert then resize"], photo)


def test_a_truncated_file_raises_at_the_same_statement(photo, memo):
    whole = photo.read_bytes()
    photo.write_bytes(whole[: len(whole) * 2 // 3])
    time.sleep(QUIET * 1.3)

    function = traced(
        lambda path, found: Image.open(path),
        lambda path, found: found[0].size,
        lambda path, found: found[0].convert("RGB"),
        lambda path, found: found[0].resize((5, 5)),
        lambda path, found: found[0].load(),
    )
    plain = assert_same(function, photo)
    assert repr(plain).count("image file is truncated") >= 3


def test_truncated_files_are_accepted_according_to_the_current_setting(photo, memo, monkeypatch):
    whole = photo.read_bytes()
    photo.write_bytes(whole[: len(whole) * 2 // 3])
    time.sleep(QUIET * 1.3)
    for allowed in (True, False, True, True, False):
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", allowed)
        plain = assert_same(PIPELINES["convert then resize"], photo)
        assert (plain[0] == "raised") is not allowed


def test_an_image_deferred_while_truncated_files_are_accepted_is_decoded(photo, memo, monkeypatch):
    whole = photo.read_bytes()
    photo.write_bytes(whole[: len(whole) * 2 // 3])
    time.sleep(QUIET * 1.3)

    def late(path):
        ImageFile.LOAD_TRUNCATED_IMAGES = True
        try:
            image = Image.open(path)
            rgb = image.convert("RGB")
            small = rgb.resize((5, 5))
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = False
        return [small, rgb, image]

    assert assert_same(late, photo)[0] == "list"
    assert hits(memo)


def by_handle(path):
    with open(path, "rb") as file:
        image = Image.open(file)
        return image.convert("RGB")


def by_handle_and_late(path):
    with open(path, "rb") as file:
        image = Image.open(file)
        small = image.convert("L").resize((6, 6))
        where = file.tell()
    return [small, image, where]


def by_handle_too_late(path):
    with open(path, "rb") as file:
        image = Image.open(file)
    return image.convert("RGB")


def within(path):
    with Image.open(path) as image:
        rgb = image.convert("RGB")
    return [rgb, image]


def within_too_late(path):
    with Image.open(path) as image:
        pass
    return image.convert("RGB")


def closed_too_early(path):
    image = Image.open(path)
    image.close()
    return image.convert("RGB")


def of_bytes(path):
    return Image.open(io.BytesIO(path.read_bytes())).convert("RGB").resize((7, 7))


def of_bytes_closed(path):
    file = io.BytesIO(path.read_bytes())
    image = Image.open(file)
    file.close()
    return image.convert("RGB")


def of_bytes_written_to(path):
    file = io.BytesIO(path.read_bytes())
    image = Image.open(file)
    file.getbuffer()[-100:-50] = bytes(50)
    return image.convert("RGB")


def of_bytes_used_again(path):
    file = io.BytesIO(path.read_bytes())
    found = [Image.open(file).convert("RGB"), file.tell()]
    file.seek(0)
    file.write(image_bytes(0, 77, SIZE))
    file.truncate()
    return [*found, Image.open(file).convert("RGB"), file.tell(), Image.open(file).resize((4, 4)), file.read(5)]


HANDLES = [
    by_handle,
    by_handle_and_late,
    by_handle_too_late,
    within,
    within_too_late,
    closed_too_early,
    of_bytes,
    of_bytes_closed,
    of_bytes_written_to,
    of_bytes_used_again,
]


@pytest.mark.parametrize("function", HANDLES, ids=lambda function: function.__name__)
def test_files_and_bytes_may_be_closed_and_reused(function, folder, memo):
    for path in sorted(folder.iterdir()):
        assert_same(function, path)


def test_a_file_has_the_position_that_loading_leaves(photo, memo):
    both = photo.with_name("both.jpg")
    both.write_bytes(photo.read_bytes() + image_bytes(0, 9, SIZE))
    time.sleep(QUIET * 1.3)

    def read(path):
        with open(path, "rb") as file:
            image = Image.open(file)
            return [file.tell(), image.convert("RGB"), file.tell(), len(file.read()), image.fp is None]

    assert_same(read, both)
    assert hits(memo)


def test_stored_images_outlive_their_files(tmp_path, memo):
    def keep(folder, change):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        paths = [folder / f"{number}.jpg" for number in range(6)]
        for number, path in enumerate(paths):
            path.write_bytes(image_bytes(0, number, SIZE))
        time.sleep(QUIET * 1.3)
        kept = []
        for _ in range(3):
            for path in paths:
                image = Image.open(path)
                rgb = image.convert("RGB")
                kept += [image, rgb, rgb.resize((9, 9))]
        for path in paths:
            change(path)
        return kept

    for change in (
        os.unlink,
        lambda path: os.rename(path, path.with_suffix(".away")),
        lambda path: os.replace(shutil.copy(paths_of_another(tmp_path), path.with_suffix(".new")), path),
    ):
        assert_same(keep, tmp_path / "kept", change, epochs=2)
    assert hits(memo)


def paths_of_another(tmp_path):
    path = tmp_path / "another.jpg"
    path.write_bytes(image_bytes(0, 99, SIZE))
    return path


def test_stored_images_outlive_a_rewrite_of_their_file(tmp_path, memo):
    def keep(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path, other = made_photo(folder / "a.jpg"), made_photo(folder / "b.jpg", seed=8)
        kept = []
        for _ in range(3):
            image = Image.open(path)
            rgb = image.convert("RGB")
            kept += [image, rgb, rgb.resize((9, 9))]
            Image.open(other)
        path.write_bytes(image_bytes(0, 3, (8, 8)))
        return kept

    assert_same(keep, tmp_path / "kept")
    assert hits(memo)


def test_an_image_is_saved_over_its_own_file(tmp_path, memo):
    def halve(path):
        made_photo(path)
        found = []
        for _ in range(3):
            image = Image.open(path)
            rgb = image.convert("RGB")
            small = rgb.resize((rgb.width - 2, rgb.height - 2))
            small.save(path)
            found += [image, rgb, small]
            time.sleep(QUIET * 1.3)
        return found

    assert_same(halve, tmp_path / "photo.png")


def test_a_file_that_changes_between_opening_and_decoding_is_read_in_its_current_state(tmp_path, memo):
    def changed(path, how):
        made_photo(path)
        Image.open(path).convert("RGB").resize((5, 5))
        Image.open(path).convert("RGB").resize((5, 5))
        image = Image.open(path)
        how(path)
        return [attempt(lambda: image.convert("RGB").resize((5, 5))), attempt(lambda: image.resize((6, 6)))]

    ways = (
        lambda path: path.write_bytes(image_bytes(0, 21, SIZE)),
        lambda path: os.truncate(path, 300),
        os.unlink,
        lambda path: os.replace(paths_of_another(path.parent), path),
    )
    for way in ways:
        assert_same(changed, tmp_path / "photo.jpg", way)


def test_a_recently_changed_file_is_not_cached(photo, memo):
    photo.write_bytes(image_bytes(0, 3, SIZE))
    PIPELINES["tensor"](photo)
    assert memo.counts().num_misses == 0
    time.sleep(QUIET * 1.3)
    for _ in range(2):
        PIPELINES["tensor"](photo)
    assert hits(memo)


def test_a_file_that_changes_while_it_is_decoded_is_not_cached(photo, memo, monkeypatch):
    real = Image.frombytes
    original = ImageFile.ImageFile.load_prepare

    def rewrites(self):
        data = bytearray(photo.read_bytes())
        photo.write_bytes(data)
        original(self)

    monkeypatch.setattr(ImageFile.ImageFile, "load_prepare", rewrites)
    Image.open(photo).convert("RGB")
    np.asarray(Image.open(photo))
    assert memo.counts().num_misses == 0 and real is Image.frombytes


def test_info_and_exif_are_unchanged(tmp_path, memo):
    exif = Image.Exif()
    exif[274], exif[315] = 6, "somebody"
    image = Image.frombytes("RGB", SIZE, os.urandom(3 * 40 * 30))
    image.save(tmp_path / "a.jpg", exif=exif, dpi=(72, 72), icc_profile=b"profile" * 9, comment=b"hello")
    image.save(tmp_path / "b.png", exif=exif, dpi=(72, 72))
    time.sleep(QUIET * 1.3)

    def seen(path):
        image = Image.open(path)
        rgb = image.convert("RGB").resize((9, 8))
        upright = ImageOps.exif_transpose(image.convert("RGB"))
        return [
            list(rgb.info),
            rgb.info,
            dict(rgb.getexif()),
            upright,
            upright.info,
            image.info,
            dict(image.getexif()),
        ]

    for path in (tmp_path / "a.jpg", tmp_path / "b.png"):
        assert_same(seen, path)
    assert hits(memo) == 0 or hits(memo) > 3


def test_text_after_the_pixels_of_a_png_is_available_after_loading(tmp_path, memo):
    from PIL import PngImagePlugin

    file = io.BytesIO()
    text = PngImagePlugin.PngInfo()
    text.add_text("before", "1")
    Image.frombytes("L", SIZE, bytes(1200)).save(file, "PNG", pnginfo=text)
    data = file.getvalue()
    chunk = io.BytesIO()
    PngImagePlugin.putchunk(chunk, b"tEXt", b"after\0 2")
    (tmp_path / "a.png").write_bytes(data)
    (tmp_path / "b.png").write_bytes(data[:-12] + chunk.getvalue() + data[-12:])
    time.sleep(QUIET * 1.3)

    def seen(path):
        image = Image.open(path)
        early = dict(image.info)
        gray = image.convert("L")
        return [early, gray, image.info, image.text, image.png is None, Image.open(path).text]

    for name in ("a.png", "b.png"):
        assert_same(seen, tmp_path / name)
    assert hits(memo)


def test_copies_and_pickles_of_deferred_images_are_images(photo, memo):
    def copies(path):
        opened = Image.open(path)
        rgb = opened.convert("RGB")
        small = rgb.resize((9, 9))
        made = [copy.copy, copy.deepcopy, lambda image: pickle.loads(pickle.dumps(image)), lambda image: image.copy()]
        return [make(image) for make in made for image in (opened, rgb, small)]

    assert_same(copies, photo, epochs=4)
    assert hits(memo)


def test_the_kinds_of_images_are_pillows_own(folder, memo):
    def kinds(path):
        image = Image.open(path)
        rgb = image.convert("RGB")
        found = [image, rgb, rgb.resize((5, 5)), rgb.crop((0, 0, 4, 4))]
        assert rgb.palette is None or rgb.mode == "P"
        return [f"{type(one).__module__}.{type(one).__name__}" for one in found] + [
            repr(one)[:60].split(" at ")[0] for one in found
        ]

    for path in sorted(folder.iterdir()):
        assert_same(kinds, path)


WRONG = {
    "no size": lambda image: image.resize(),
    "floats": lambda image: image.resize((5.0, 5.0)),
    "nothing": lambda image: image.resize((0, 5)),
    "negative": lambda image: image.resize((-1, 5)),
    "text": lambda image: image.resize("ab"),
    "filter": lambda image: image.resize((5, 5), 99),
    "filter as text": lambda image: image.resize((5, 5), "2"),
    "filter as float": lambda image: image.resize((5, 5), 2.0),
    "gap": lambda image: image.resize((5, 5), 2, None, 0.5),
    "box": lambda image: image.resize((5, 5), box=(0, 0, 500, 5)),
    "unknown": lambda image: image.resize((5, 5), nonsense=1),
    "twice": lambda image: image.resize((5, 5), size=(5, 5)),
    "mode": lambda image: image.convert("nonsense"),
    "no mode": lambda image: image.convert(),
    "mode 5": lambda image: image.convert(5),
    "list": lambda image: image.convert(["RGB"]),
    "edges": lambda image: image.crop((1, 2, 3)),
    "turned": lambda image: image.crop((5, 5, 1, 1)),
    "empty": lambda image: image.crop((2, 2, 2, 2)),
    "crop text": lambda image: image.crop("abcd"),
    "crop all": lambda image: image.crop(),
    "crop none": lambda image: image.crop(None),
    "crop floats": lambda image: image.crop((0.5, 1.5, 9.5, 9.4)),
    "crop numbers": lambda image: (lambda cut: [cut, [type(edge) for edge in cut.size]])(
        image.crop(tuple(np.arange(4) * 3))
    ),
    "loaded first": lambda path: loaded(path).convert("RGB").resize((11, 13)),
    "loaded and used": lambda path: [loaded(path).load()[3, 4], loaded(path)],
    "crop twice": lambda image: image.crop((1, 2, 3, 4), (1, 2, 3, 4)),
    "attribute": lambda image: image.nonsense,
    "encoder": lambda image: image.tobytes("nonsense"),
    "raw": lambda image: image.tobytes("raw", "BGR"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=[name.replace(" ", "_") for name in WRONG])
def test_invalid_arguments_raise_pillows_error(wrong, photo, memo):
    def once(path):
        opened = Image.open(path)
        rgb = Image.open(path).convert("RGB")
        small = rgb.resize((20, 20))
        return [attempt(lambda image=image: wrong(image)) for image in (opened, rgb, small)]

    assert_same(once, photo)


def test_invalid_files_raise_pillows_error(tmp_path, memo):
    (tmp_path / "text.jpg").write_text("hello")
    for wrong in (
        tmp_path / "none.jpg",
        tmp_path / "text.jpg",
        tmp_path,
        5,
        None,
        io.StringIO("x"),
        io.BytesIO(b"x"),
    ):
        assert_same(lambda wrong=wrong: Image.open(wrong))
    assert_same(lambda: Image.open())
    assert_same(lambda: Image.open(tmp_path / "text.jpg", "w"))
    assert_same(lambda: Image.open(tmp_path / "text.jpg", formats="JPEG"))


def test_an_image_above_pillows_size_limit_raises_where_pillow_raises(photo, memo, monkeypatch):
    PIPELINES["crop"](photo)
    rgb = [Image.open(photo).convert("RGB") for _ in range(2)]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(Image.DecompressionBombError):
        rgb[1].crop((0, 0, 30, 20))
    with pytest.warns(Image.DecompressionBombWarning):
        rgb[1].crop((0, 0, 15, 10))


def test_images_may_be_passed_between_threads(photo, memo):
    others = [made_photo(photo.with_name(f"{number}.jpg"), seed=number) for number in range(4)]
    with using(None):
        plain = [np.asarray(Image.open(path).convert("RGB").resize((9, 9))) for path in others]
    shared = {}
    failed = []

    def work(seed):
        try:
            for turn in range(25):
                number = (seed + turn) % 4
                image = Image.open(others[number])
                rgb = shared.setdefault((turn, number), image.convert("RGB"))  # possibly from another thread
                small = rgb.resize((9, 9))
                assert (np.asarray(small) == plain[number]).all()
                assert np.asarray(rgb.crop((0, 0, 9, 9))).shape == (9, 9, 3)
                assert np.asarray(image).shape == (30, 40, 3)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed % 2,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and hits(memo)


def test_forked_children_compute_their_parents_deferred_images(photo, memo):
    for _ in range(3):
        image = Image.open(photo)
        rgb = image.convert("RGB")
        small = rgb.resize((9, 9))
    with using(None):
        plain = [look(one) for one in (Image.open(photo), Image.open(photo).convert("RGB"))]
    children = []
    for _ in range(4):
        if not (child := os.fork()):
            code = 1
            try:
                same = [look(image)[:5], look(rgb)[:5]] == [one[:5] for one in plain]
                code = 42 if same and np.asarray(small).shape == (9, 9, 3) else 2
            finally:
                os._exit(code)
        children.append(child)
    assert [look(image), look(rgb)] == plain
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [42] * 4


def test_one_image_serves_two_results(photo, memo):
    def branches(path):
        rgb = Image.open(path).convert("RGB")
        return [rgb.resize((9, 9)), rgb.resize((8, 8)), rgb.crop((0, 0, 5, 5)), rgb, rgb.convert("L")]

    assert_same(branches, photo, epochs=4)
    before = memo.counts().num_misses
    branches(photo)
    assert memo.counts().num_misses == before


def test_every_patch_is_restored(photo):
    from PIL import JpegImagePlugin

    owners = [Image, Image.Image, ImageFile.ImageFile, JpegImagePlugin.JpegImageFile]
    before = [dict(vars(owner)) for owner in owners]
    memo = Memo(RamTier(4 << 20))
    with memoizing(memo):
        assert Image.open is not before[0]["open"]
        assert inspect.signature(Image.Image.resize) == inspect.signature(before[1]["resize"])
        PIPELINES["tensor"](photo)
    memo.close()
    for owner, names in zip(owners, before):
        now = vars(owner)
        assert {name for name in {*names, *now} if names.get(name) is not now.get(name)} == set(), owner


def test_images_outlive_the_memo(photo):
    with using(None):
        plain = [
            look(one)
            for one in (Image.open(photo), PIPELINES["convert"](photo), PIPELINES["convert then resize"](photo))
        ]
    for num_epochs in (1, 2, 3):
        memo = Memo(RamTier(4 << 20))
        with memoizing(memo):
            for _ in range(num_epochs):
                image = Image.open(photo)
                rgb = image.convert("RGB")
                small = rgb.resize((11, 13), Image.Resampling.LANCZOS)
        memo.close()
        assert [look(image), look(rgb), look(small)] == plain
        assert look(rgb.resize((11, 13), Image.Resampling.LANCZOS)) == plain[2]


def test_without_a_memo_nothing_changes(photo, memo):
    rgb = Image.open(photo).convert("RGB")
    with using(None):
        assert pillow.TAG not in vars(Image.open(photo))
        assert look(rgb.resize((5, 5))) == look(Image.open(photo).convert("RGB").resize((5, 5)))
    use_in_process(None)
    assert look(rgb.convert("L")) == look(Image.open(photo).convert("RGB").convert("L"))


def test_no_descriptor_stays_open(folder, memo):
    kinds = {number: FILES[number] for number in MEMOIZED if not FILES[number][2].get("frames")}
    kinds = {number: kind for number, kind in kinds.items() if kind[:2] != ("bmp", "L")}  # Pillow leaves it open
    paths = [path for path in folder.iterdir() if int(path.name.split("-")[0]) in kinds]
    for path in paths:  # to import what decoding needs
        pipeline_or_error(path)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    kept = []
    while len(kept) < 500:
        for path in paths:
            image = Image.open(path)
            kept.append((image, image.convert("RGB")))
            pipeline_or_error(path)
    assert len(os.listdir("/proc/self/fd")) <= before + 2 + pillow.MAX_DEFERRED


def pipeline_or_error(path):
    return attempt(lambda: PIPELINES["tensor"](path))


def test_no_file_is_left_open_for_the_garbage_collector(folder, memo):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        unraised = []
        hook, sys.unraisablehook = sys.unraisablehook, lambda found: unraised.append(found.exc_value)
        try:
            for _ in range(3):
                for path in folder.glob("*.jpg"):
                    Image.open(path).convert("RGB").resize((5, 5))
                    np.asarray(Image.open(path))
                    image = Image.open(path)
                    image.convert("L")
                    del image
            gc.collect()
        finally:
            sys.unraisablehook = hook
    assert unraised == []


def test_a_damaged_or_foreign_value_is_recomputed(photo, memo, monkeypatch):
    from hasten.data.memo.codec import Raw

    for value in ([1], Raw({}, b"abc"), "text", None, Raw({"mode": "RGB"}, b"")):
        with monkeypatch.context() as patched:
            from hasten.data.memo.codec import encode

            encoded = b"".join(bytes(piece) for piece in encode(value).pieces)
            patched.setattr(memo, "find", lambda key, data=encoded: (0, np.frombuffer(bytearray(data), np.uint8)))
            assert_same(PIPELINES["convert then resize"], photo, epochs=1)
            assert_same(PIPELINES["asarray"], photo, epochs=1)


@pytest.mark.slow
def test_pillow_is_memoized_whenever_it_is_imported(tmp_path, photo):
    script = tmp_path / "late.py"
    script.write_text(
        "import sys\n"
        "from hasten.data.memo.memo import Memo\n"
        "from hasten.data.memo.ram import RamTier\n"
        "from hasten.data.memo import table\n"
        "memo = Memo(RamTier(4 << 20))\n"
        "with table.memoizing(memo):\n"
        "    from PIL import Image\n"
        "    from hasten.data.memo import keys\n"
        "    keys.QUIET_SECONDS = 0\n"
        "    for _ in range(3):\n"
        "        Image.open(sys.argv[1]).convert('RGB')\n"
        "print(memo.counts().tiers[0].num_hits)\n"
    )
    done = subprocess.run([sys.executable, script, photo], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == ("2", "")


# Replacements of Pillow's functions by a script, and the files it reads.


@pytest.mark.parametrize("name", ["convert", "resize", "load"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_functions_replaced_by_the_script_are_not_cached(photo, monkeypatch, name, when):
    owner = ImageFile.ImageFile if name == "load" else Image.Image
    original, gains = getattr(owner, name), iter(range(100))

    def mine(self, *arguments, **named):
        found = original(self, *arguments, **named)
        gain = next(gains)
        return found if name == "load" else found.point(lambda value: (value + gain) % 256)

    if when == "before":
        monkeypatch.setattr(owner, name, mine)
    memo = Memo(RamTier(16 << 20))
    with memoizing(memo):
        if when == "after":
            original = getattr(owner, name)
            monkeypatch.setattr(owner, name, mine)
        pixels = {Image.open(photo).convert("RGB").resize((8, 8)).tobytes() for _ in range(4)}
        if when == "after":
            monkeypatch.undo()  # before hasten's patches below it are restored
    monkeypatch.undo()
    assert memo.counts().num_hits == 0 and len(pixels) == (1 if name == "load" else 4)
    memo.close()


@pytest.fixture
def patches():
    made = Patches()
    yield made
    made.undo()


def test_hastens_wrappers_around_pillow_are_accepted_and_part_of_the_key(photo, patches):
    def small():
        return Image.open(photo).convert("RGB").resize((16, 12), Image.Resampling.BILINEAR).tobytes()

    def misses(expected):
        before = memo.counts().num_misses
        assert {small() for _ in range(3)} == {expected}
        return memo.counts().num_misses - before

    plain, memo = small(), Memo(RamTier(16 << 20))
    libraries.install(patches)
    with memoizing(memo):
        assert misses(plain) and not misses(plain)
    handle = Handle("resize", Models(patches))
    patches.on_undo(handle.disable)
    handle.enable("hasten.optimizations.resize:enable", True)
    close = small()
    with memoizing(memo):
        assert misses(close) and not misses(close)
    patches.undo()
    with memoizing(memo):
        assert not misses(plain)
    memo.close()


class Window(io.FileIO):
    """A part of a file that reads like a whole file."""

    def __init__(self, path, start, end):
        super().__init__(path)
        self.start, self.end = start, end
        super().seek(start)

    def readinto(self, buffer):
        room = memoryview(buffer)[: max(0, self.end - super().tell())]
        return super().readinto(room)

    def seek(self, offset, whence=0):
        place = {0: self.start, 1: super().tell(), 2: self.end}[whence] + offset
        return super().seek(place) - self.start

    def tell(self):
        return super().tell() - self.start


def test_a_part_of_a_file_is_not_mistaken_for_the_file(tmp_path, memo):
    pieces = [image_bytes(15, seed, (20, 16)) for seed in range(3)]
    (tmp_path / "pack").write_bytes(b"".join(pieces))
    time.sleep(QUIET * 1.3)
    ends = np.cumsum([len(piece) for piece in pieces]).tolist()

    def read(at):
        return Image.open(io.BufferedReader(Window(tmp_path / "pack", [0, *ends][at], ends[at]))).convert("RGB")

    for at in range(3):
        assert_same(read, at)


def test_a_deferred_image_is_computed_before_its_file_is_opened_for_writing(photo, memo):
    def rewrite(path):
        image = Image.open(path).convert("RGB")
        with open(path, "wb") as file:
            image.save(file, "PNG")

    for _ in range(3):
        Image.open(photo).convert("RGB").resize((8, 8))
    expected = Image.open(photo).convert("RGB").tobytes()
    rewrite(photo)
    with using(None):
        assert Image.open(photo).tobytes() == expected


def test_images_that_are_opened_in_pairs_are_both_cached(tmp_path, memo):
    photo, mask = made_photo(tmp_path / "photo.jpg", 1), made_photo(tmp_path / "mask.png", 2, kind=4)

    def pair():
        images = [Image.open(path).convert("RGB") for path in (photo, mask)]
        return [image.resize((8, 8)).tobytes() for image in images]

    expected = pair()
    pair()
    before = memo.counts()
    assert pair() == expected
    after = memo.counts()
    assert after.num_hits > before.num_hits and after.num_misses == before.num_misses


def test_a_pixel_limit_set_later_does_not_affect_an_open_image(photo, memo, monkeypatch):
    def look_late():
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
        image = Image.open(photo).convert("RGB")
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
        return image.tobytes()

    Image.open(photo).convert("RGB").resize((8, 8))
    Image.open(photo).convert("RGB").resize((8, 8))
    assert len({look_late() for _ in range(3)}) == 1


def test_no_transparency_differs_from_a_transparency_of_none(tmp_path, memo):
    photo = made_photo(tmp_path / "photo.png", kind=4)

    def convert(has_one):
        image = Image.open(photo)
        if has_one:
            image.info["transparency"] = None
        return image.convert("L")

    for has_one in (False, True, False, True):
        with using(None):
            expected = "transparency" in convert(has_one).info
        assert ("transparency" in convert(has_one).info) == expected


def test_an_image_that_is_used_and_resized_is_cached_as_both(photo, memo):
    def pair():
        image = loaded(photo).convert("RGB").resize((16, 12))
        return np.asarray(image.resize((8, 6))).tolist(), np.asarray(image).tolist()

    with using(None):
        expected = pair()
    for _ in range(3):
        assert pair() == expected
    before = memo.counts()
    assert pair() == expected
    assert memo.counts().num_misses == before.num_misses and memo.counts().num_hits >= before.num_hits + 2


def test_the_result_of_load_refers_to_the_pixels_at_that_time(photo, memo):
    def old_and_new(path):
        image = Image.open(path).convert("RGB")
        old = image.load()
        image.thumbnail((8, 6))
        new = image.load()
        old[1, 1], new[1, 1] = (1, 2, 3), (4, 5, 6)
        return old[1, 1], image

    assert_same(old_and_new, photo)


@pytest.mark.parametrize("pipeline", ["asarray", "array", "resize", "crop", "loaded first"])
def test_pixels_released_while_they_are_read_are_recomputed(photo, memo, monkeypatch, pipeline):
    view = RamTier.view

    def view_of_what_is_gone(self, key):
        found = view(self, key)
        return found and (np.concatenate((found[0][:192], np.zeros_like(found[0][192:]))), lambda: False)

    monkeypatch.setattr(RamTier, "view", view_of_what_is_gone)
    assert_same(PIPELINES[pipeline], photo)


def test_a_disk_keeps_the_resized_images_and_not_the_whole_ones_beside_them(tmp_path):
    tier = DiskTier(64 << 20, root=tmp_path / "memo", script="x")
    memo = Memo(None, tier)
    with memoizing(memo):
        for number in range(8):
            made_photo(tmp_path / f"{number}.jpg", seed=number)
            Image.open(tmp_path / f"{number}.jpg").convert("RGB").resize((10, 8)).tobytes()
    sizes = [path.stat().st_size for path in tier._folder.iterdir() if path.name != "hasten-store"]
    assert sum(size > SIZE[0] * SIZE[1] for size in sizes) == 1, "the first, which nobody knows to be resized"
    memo.close()


def test_a_file_may_be_opened_for_writing_while_other_threads_open_images(photo, memo, tmp_path):
    stop, failed = threading.Event(), []
    alive = [Image.open(photo).convert("RGB") for _ in range(300)]

    def opening():
        while not stop.is_set():
            Image.open(photo).convert("RGB").resize((10, 8))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=opening) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(100):
            with open(tmp_path / "log", "w"):
                pass
    except RuntimeError as error:
        failed.append(error)
    finally:
        stop.set()
        sys.setswitchinterval(before)
        for thread in threads:
            thread.join()
    assert failed == [] and len(alive) == 300


def test_a_fork_waits_until_no_thread_changes_what_is_memoized():
    held = threading.Event()

    def hold():
        with table._holding.threads:
            held.set()
            time.sleep(0.2)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if not child:
        os._exit(0 if table._holding.threads.acquire(timeout=2.0) else 1)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
