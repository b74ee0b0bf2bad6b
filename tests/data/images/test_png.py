"""Plain PNG files decoded by OpenCV: Pillow's pixels, or None."""

import io
import random
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from hasten.data.images import decode
from hasten.data.images.decode import read_image

cv2 = pytest.importorskip("cv2")


def saved(array, **settings):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG", **settings)
    return file.getvalue()


def chunks(data):
    at = len(decode.SIGNATURE)
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        yield kind, data[at + 8 : at + 8 + length]
        at += 12 + length


def built(parts):
    sums = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )
    return decode.SIGNATURE + b"".join(sums)


def picture(seed, shape):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8).cumsum(1).astype(np.uint8)


@pytest.mark.parametrize("shape", [(1, 1), (37, 53), (40, 30, 3)])
@pytest.mark.parametrize("level", [0, 1, 9])
def test_plain_files_have_pillows_pixels(shape, level):
    array = picture(1, shape)
    found = decode.decode_png(saved(array, compress_level=level))
    assert found is not None and found.dtype == np.uint8 and np.array_equal(found, array)
    assert np.array_equal(read_image(saved(array), keep_grey=True), array)


def test_text_chunks_do_no_harm():
    about = PngImagePlugin.PngInfo()
    about.add_text("Comment", "a film")
    array = picture(2, (9, 9))
    assert np.array_equal(decode.decode_png(saved(array, pnginfo=about, dpi=(72, 72))), array)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "1", "I;16"])
def test_other_kinds_of_png_are_left_to_pillow(mode):
    image = Image.fromarray(picture(3, (9, 9, 3)))
    image = Image.fromarray(np.zeros((9, 9), np.uint16)) if mode == "I;16" else image.convert(mode)
    file = io.BytesIO()
    image.save(file, "PNG")
    assert decode.decode_png(file.getvalue()) is None


def test_an_unknown_chunk_is_left_to_pillow():
    parts = list(chunks(saved(picture(4, (9, 9)))))
    for kind, body in ((b"tRNS", b"\0\7"), (b"acTL", bytes(8)), (b"iCCP", b"x\0\0")):
        assert decode.decode_png(built([parts[0], (kind, body), *parts[1:]])) is None


def test_without_opencv_pillow_decodes(monkeypatch):
    monkeypatch.setattr(decode, "_opencv", lambda: None)
    array = picture(5, (9, 9))
    assert decode.decode_png(saved(array)) is None and np.array_equal(read_image(saved(array), keep_grey=True), array)


def damaged(data, how, chance):
    parts = list(chunks(data))
    place = next(place for place, (kind, _) in enumerate(parts) if kind == b"IDAT")
    body = bytearray(parts[place][1])
    if how == "cut":
        return data[: chance.randrange(len(data))]
    if how == "flipped":
        return bytes(byte ^ (chance.random() < 2 / len(data)) << chance.randrange(8) for byte in data)
    if how == "pixels flipped, summed anew":
        body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    elif how == "pixels cut, summed anew":
        del body[chance.randrange(len(body)) :]
    else:
        head = bytearray(parts[0][1])
        head[chance.randrange(13)] = chance.randrange(20)
        parts[0] = parts[0][0], bytes(head)
    parts[place] = b"IDAT", bytes(body)
    return built(parts)


@pytest.mark.parametrize(
    "how", ["cut", "flipped", "pixels flipped, summed anew", "pixels cut, summed anew", "head changed, summed anew"]
)
def test_a_damaged_png_is_decoded_like_pillow(how):
    chance = random.Random(how)
    for seed in range(150):
        shape = (chance.randint(1, 30), chance.randint(1, 30), 3)[: chance.choice([2, 3])]
        data = damaged(saved(picture(seed, shape)), how, chance)
        ours = decode.decode_png(data)
        if ours is not None:
            with Image.open(io.BytesIO(data)) as image:
                assert np.array_equal(np.asarray(image), ours)
