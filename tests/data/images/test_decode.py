"""Every file has Pillow's pixels, and raises if Pillow raises."""

import io
import random
import warnings

import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageFile

from hasten.data.images import decode
from hasten.data.images.decode import decoder_versions, read_image
from hasten.errors import ImageModeError

HEIGHT, WIDTH = 61, 83


def colours():
    """Smooth colors with some noise, so that every way of upsampling returns different pixels."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    smooth = np.stack([rows * 4 % 251, columns * 3 % 253, rows * columns // 9 % 255], axis=-1)
    noise = np.random.default_rng(0).integers(-20, 21, smooth.shape)
    return np.clip(smooth + noise, 0, 255).astype(np.uint8)


def saved(kind, mode="RGB", **options):
    file = io.BytesIO()
    Image.fromarray(colours()).convert(mode).save(file, kind, **options)
    return file.getvalue()


def sixteen_bits():
    file = io.BytesIO()
    Image.fromarray(colours()[:, :, 0].astype(np.uint16) * 257).save(file, "PNG")
    return file.getvalue()


def exif_rotated():
    exif = Image.Exif()
    exif[274] = 6
    return saved("JPEG", exif=exif, icc_profile=b"profile" * 50, comment=b"a comment")


JPEGS = {
    "4:4:4": saved("JPEG", subsampling=0),
    "4:2:2": saved("JPEG", subsampling=1),
    "4:2:0": saved("JPEG", subsampling=2),
    "4:4:0": simplejpeg.encode_jpeg(colours(), colorsubsampling="440"),
    "4:1:1": simplejpeg.encode_jpeg(colours(), colorsubsampling="411"),
    "progressive": saved("JPEG", subsampling=2, progressive=True),
    "restarts": saved("JPEG", restart_marker_blocks=2),
    "grey": saved("JPEG", "L"),
    "cmyk": saved("JPEG", "CMYK"),
    "rgb inside": saved("JPEG", keep_rgb=True),
    "rotated": exif_rotated(),
}
OTHERS = {
    "png": saved("PNG"),
    "png grey": saved("PNG", "L"),
    "png grey with alpha": saved("PNG", "LA"),
    "png with alpha": saved("PNG", "RGBA"),
    "png palette": saved("PNG", "P"),
    "png one bit": saved("PNG", "1"),
    "png sixteen bits": sixteen_bits(),
    "webp": saved("WEBP", lossless=True),
    "bmp": saved("BMP"),
    "gif": saved("GIF", "P"),
    "tiff": saved("TIFF"),
}
FILES = {**JPEGS, **OTHERS}


def by_pillow(data, mode):
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


def outcome(read, data, mode):
    """Return the pixels, or the type of the exception."""
    try:
        return read(data, mode)
    except Exception as error:
        return type(error)


def assert_as_pillow(data, mode):
    expected = outcome(by_pillow, data, mode)
    found = outcome(lambda data, mode: read_image(data, mode=mode), data, mode)
    if isinstance(expected, type):
        assert found is expected
    else:
        assert isinstance(found, np.ndarray), found
        assert found.dtype == np.uint8
        assert np.array_equal(found, expected)


def damaged(data, chance):
    """Damage a file in one of many ways."""
    data = bytearray(data)
    way, place = chance.randrange(5), chance.randrange(len(data))
    if way == 0:
        return bytes(data[:place])
    if way == 1:
        for _ in range(chance.choice((1, 2, 5))):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif way == 2:
        data[chance.randrange(min(len(data), 700))] = chance.randrange(256)
    elif way == 3:
        del data[place : place + chance.choice((1, 2, 10, 100))]
    else:
        data[place:place] = chance.randbytes(chance.choice((1, 2, 10, 100)))
    return bytes(data)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_an_intact_file_has_pillows_pixels(data, mode):
    assert_as_pillow(data, mode)


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
@pytest.mark.parametrize("truncated_is_allowed", [False, True])
def test_a_damaged_file_has_pillows_pixels_or_raises_pillows_error(data, truncated_is_allowed, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", truncated_is_allowed)
    chance = random.Random(len(data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about what it skips
        for _ in range(60):
            assert_as_pillow(damaged(data, chance), "RGB")


@pytest.mark.parametrize("name", sorted(set(JPEGS) - {"cmyk"}))
def test_a_truncated_photo_raises_pillows_error(name):
    data = JPEGS[name]
    for length in range(len(data) // 2, len(data) - 2, 7):
        with pytest.raises(OSError, match="truncated"):
            read_image(data[:length])


@pytest.mark.parametrize("name", sorted(set(JPEGS) - {"cmyk"}))
def test_an_intact_photo_is_not_decoded_by_pillow(name, monkeypatch):
    assert decode.simplejpeg_agrees()
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("Pillow decoded it"))
    assert read_image(JPEGS[name]).shape == (HEIGHT, WIDTH, 3)


def test_with_another_libjpeg_pillow_decodes_everything(monkeypatch):
    decode.simplejpeg_agrees.cache_clear()
    try:
        with monkeypatch.context() as patched:
            patched.setattr(simplejpeg, "decode_jpeg", lambda *_, **__: np.zeros((37, 53, 3), np.uint8))
            assert not decode.simplejpeg_agrees()
            assert np.array_equal(read_image(JPEGS["4:2:0"]), by_pillow(JPEGS["4:2:0"], "RGB"))
    finally:
        decode.simplejpeg_agrees.cache_clear()


def test_a_wrong_extension_does_not_matter(tmp_path):
    path = tmp_path / "photo.png"
    path.write_bytes(JPEGS["4:2:0"])
    assert np.array_equal(read_image(path), by_pillow(JPEGS["4:2:0"], "RGB"))


def test_a_missing_or_empty_file_raises_pillows_error(tmp_path):
    (tmp_path / "empty.jpg").touch()
    for path in (tmp_path / "missing.jpg", tmp_path / "empty.jpg"):
        with pytest.raises(OSError) as expected:
            Image.open(path)
        with pytest.raises(OSError) as found:
            read_image(path)
        assert found.type is expected.type


def test_a_decompression_bomb_raises_pillows_error(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(Image.DecompressionBombError):
        read_image(JPEGS["4:2:0"])


@pytest.mark.parametrize("name", ["grey", "png grey"])
def test_a_grayscale_file_may_stay_grayscale(name):
    kept = read_image(FILES[name], keep_grey=True)
    assert kept.shape == (HEIGHT, WIDTH)
    assert np.array_equal(np.repeat(kept[:, :, None], 3, axis=2), read_image(FILES[name]))


def test_a_color_file_does_not_become_grayscale():
    assert read_image(FILES["png"], keep_grey=True).shape == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("name", ["4:2:0", "grey", "png", "png grey"])
def test_without_a_mode_rgb_and_grayscale_stay_unchanged(name):
    assert np.array_equal(read_image(FILES[name], mode=None), np.asarray(Image.open(io.BytesIO(FILES[name]))))


@pytest.mark.parametrize("name", ["cmyk", "png with alpha", "png palette", "png sixteen bits"])
def test_without_a_mode_other_modes_raise(name):
    with pytest.raises(ImageModeError, match="mode='RGB'"):
        read_image(FILES[name], mode=None)


@pytest.mark.parametrize(
    ("wanted", "size"),
    [((8, 11), (8, 11)), ((9, 11), (16, 21)), ((16, 20), (16, 21)), ((31, 42), (31, 42)), ((32, 1), (61, 83))],
)
def test_a_photo_may_be_shrunk_while_decoding_but_not_below_the_requested_size(wanted, size):
    assert read_image(JPEGS["4:2:0"], at_least=wanted).shape == (*size, 3)


def test_the_versions_name_both_decoders():
    assert simplejpeg.__version__.encode() in decoder_versions()
    assert Image.__version__.encode() in decoder_versions()
