"""Datasets that treat images and files as user code may, run with and without a memo in lockstep."""

import contextlib
import copy
import io
import json
import mmap
import os
import pickle
import random
import re
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFile, ImageFilter, ImageOps
from torchvision.io import read_image
from torchvision.transforms import functional as F

from hasten.data.memo.memo import using

QUIET = 0.01  # seconds; the clock of this file system ticks every 4 ms


# Bit-exact comparison of values


def look(value, root=""):
    """Return everything observable of a value, as plain values."""
    if isinstance(value, Image.Image):
        try:
            pixels = value.tobytes()
        except Exception as error:
            pixels = look(error, root)
        return (
            type(value).__name__,
            value.mode,
            value.size,
            look(value.info, root),
            pixels,
            attempt(value.getpalette, root),
            value.format,
            bool(value.readonly) if not isinstance(pixels, tuple) else None,
        )
    if isinstance(value, BaseException):
        return "raised", type(value).__name__, re.sub("0x[0-9a-fA-F]+", "0x", without(root, str(value)))
    if isinstance(value, np.ndarray):
        return "array", value.dtype.str, value.shape, value.tobytes(), value.flags.writeable
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, dict):
        return "dict", [(key, look(one, root)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [look(one, root) for one in value]
    return type(value).__name__, without(root, repr(value))


def without(root, text):
    return text.replace(str(root), "ROOT") if root else text


def attempt(function, root=""):
    """Return what a function returns, or the exception it raises."""
    try:
        return look(function(), root)
    except Exception as error:
        return look(error, root)


# Image files


def pixels(seed, mode, size):
    bands = len(Image.new(mode, (1, 1)).getbands())
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (size[1] // 4 + 1, size[0] // 4 + 1, bands), np.uint8)
    fine = coarse.repeat(4, 0).repeat(4, 1)[: size[1], : size[0]]
    return np.ascontiguousarray(fine[..., 0] if bands == 1 else fine)


FILES = (
    ("jpg", "RGB", {}),
    ("jpg", "L", {}),
    ("jpg", "CMYK", {}),
    ("jpg", "RGB", {"orientation": 6}),
    ("jpg", "RGB", {"orientation": 3, "progressive": True}),
    ("png", "RGB", {}),
    ("png", "RGBA", {}),
    ("png", "LA", {}),
    ("png", "L", {"transparency": 17}),
    ("png", "RGB", {"transparency": (1, 2, 3)}),
    ("png", "P", {"transparency": bytes(range(200))}),
    ("png", "P", {"transparency": 3}),
    ("png", "P", {}),
    ("png", "I;16", {}),
    ("png", "1", {}),
    ("bmp", "RGB", {}),
    ("bmp", "L", {}),
    ("ppm", "RGB", {}),
    ("webp", "RGB", {}),
    ("tif", "RGB", {"orientation": 6, "compression": "tiff_lzw"}),
    ("tif", "L", {}),
    ("gif", "P", {"frames": True}),
    ("jp2", "RGB", {}),
    ("mpo", "RGB", {"frames": True}),
    ("png", "RGB", {"frames": True}),
)
FORMATS = {"jpg": "JPEG", "tif": "TIFF", "jp2": "JPEG2000"}


def image_bytes(kind, seed=0, size=(20, 16)):
    """Return the bytes of an image file of one of FILES."""
    extension, mode, options = FILES[kind]
    options = dict(options)
    made = {
        "P": lambda: Image.fromarray(pixels(seed, "RGB", size)).quantize(64),
        "I;16": lambda: Image.fromarray(pixels(seed, "L", size).astype(np.uint16) * 257),
        "1": lambda: Image.fromarray(pixels(seed, "L", size)).convert("1"),
    }.get(mode, lambda: Image.frombytes(mode, size, pixels(seed, mode, size).tobytes()))
    image = made()
    if "orientation" in options:
        exif = Image.Exif()
        exif[274] = options.pop("orientation")
        options["exif"] = exif
    if options.pop("frames", False):
        options |= {"save_all": True, "append_images": [made().transpose(Image.Transpose.ROTATE_180)]}
    file = io.BytesIO()
    image.save(file, format=FORMATS.get(extension, extension.upper()), **options)
    return file.getvalue()


POOL_SEEDS = 4
POOL = {(kind, seed): None for kind in range(len(FILES)) for seed in range(POOL_SEEDS)}


def pooled(kind, seed):
    """Return the bytes of an image file, created once."""
    if POOL[kind, seed] is None:
        POOL[kind, seed] = image_bytes(kind, seed, ((20, 16), (33, 40), (8, 9), (40, 24))[seed])
    return POOL[kind, seed]


# What user code does to images. Each takes the image, a generator of random numbers and the dataset, and returns an image.

OPERATIONS = {}


def operation(function):
    OPERATIONS[function.__name__] = function
    return function


@operation
def to_rgb(image, rng, dataset):
    return image.convert("RGB")


@operation
def to_gray(image, rng, dataset):
    return image.convert("L")


@operation
def to_any(image, rng, dataset):
    return image.convert(rng.choice(["RGBA", "P", "1", "I", "CMYK", "nonsense", None]))


@operation
def to_rgb_by_name(image, rng, dataset):
    return image.convert(mode="RGB")


@operation
def resize(image, rng, dataset):
    return image.resize(dataset.size)


@operation
def resize_bilinear(image, rng, dataset):
    return image.resize(list(dataset.size), Image.Resampling.BILINEAR)


@operation
def resize_oddly(image, rng, dataset):
    sizes = [(9.0, 9.0), (0, 5), "ab", (5,), np.array([6, 7]), (np.int64(6), 7), (True, 4), iter((4, 5)), None]
    return image.resize(sizes[rng.randrange(len(sizes))], rng.choice([None, 2, 99, 2.0, "2"]))


@operation
def resize_part(image, rng, dataset):
    return image.resize((7, 7), box=(0, 0, image.width / 2, image.height - 1))


@operation
def resize_in_two(image, rng, dataset):
    return image.resize((5, 5), Image.Resampling.BICUBIC, reducing_gap=2.0)


@operation
def crop_somewhere(image, rng, dataset):
    left, upper = rng.randrange(max(1, image.width - 4)), rng.randrange(max(1, image.height - 4))
    return image.crop((left, upper, left + 4, upper + 4))


@operation
def crop_and_resize(image, rng, dataset):
    left = rng.randrange(4)
    return image.crop((left, 1, left + 6, 7)).resize((9, 9), Image.Resampling.BILINEAR)


@operation
def crop_oddly(image, rng, dataset):
    boxes = [
        None,
        (0, 0, *image.size),
        (-3, -2, 5, 5),
        (0.4, 0.6, 5.5, 6.5),
        (5, 5, 1, 1),
        (1, 2, 3),
        [0, 0, 4, 4],
        (2, 2, 2, 2),
    ]
    return image.crop(rng.choice(boxes))


@operation
def flip(image, rng, dataset):
    return F.hflip(image)


@operation
def rotate(image, rng, dataset):
    return image.rotate(30, expand=True)


@operation
def upright(image, rng, dataset):
    return ImageOps.exif_transpose(image)


@operation
def upright_in_place(image, rng, dataset):
    ImageOps.exif_transpose(image, in_place=True)
    return image


@operation
def thumbnail(image, rng, dataset):
    image.thumbnail((12, 12))
    return image


@operation
def thumbnail_in_one(image, rng, dataset):
    image.thumbnail((10, 10), reducing_gap=None)
    return image


@operation
def draft(image, rng, dataset):
    image.draft("L", (8, 8))
    return image


@operation
def draw(image, rng, dataset):
    ImageDraw.Draw(image).line((0, 0, 5, 5), fill=1)
    return image


@operation
def put_pixel(image, rng, dataset):
    image.putpixel((1, 1), 3)
    return image


@operation
def write_by_access(image, rng, dataset):
    access = image.load()
    access[0, 0] = access[1, 1]
    access[1, 1] = access[2, 2]
    return image


@operation
def put_alpha(image, rng, dataset):
    image.putalpha(99)
    return image


@operation
def put_palette(image, rng, dataset):
    image.putpalette(bytes(range(256)) * 3)
    return image


@operation
def paste(image, rng, dataset):
    image.paste(image.crop((0, 0, 3, 3)), (2, 2))
    return image


@operation
def fill_bytes(image, rng, dataset):
    if not image.readonly:  # see above
        image.frombytes(bytes(len(image.tobytes())))
    return image


@operation
def write_to_core(image, rng, dataset):
    if not image.readonly:  # memory that Pillow maps is read-only, and Pillow does not check
        image.im.putpixel((0, 1), 5)
    return image


@operation
def write_info(image, rng, dataset):
    image.info["transparency"] = 2
    image.info["note"] = [1]
    return image


@operation
def copied(image, rng, dataset):
    return image.copy()


@operation
def copied_deeply(image, rng, dataset):
    return copy.deepcopy(image)


@operation
def pickled(image, rng, dataset):
    return pickle.loads(pickle.dumps(image))


@operation
def blurred(image, rng, dataset):
    return image.filter(ImageFilter.BoxBlur(1))


@operation
def counted(image, rng, dataset):
    dataset.seen.append((image.getcolors(10_000), image.histogram(), image.getbbox(), image.getextrema()))
    return image


@operation
def seen_early(image, rng, dataset):
    dataset.seen.append(np.asarray(image))
    return image


@operation
def described(image, rng, dataset):
    exif = dict(image.getexif())
    dataset.seen.append((image.size, image.mode, dict(image.info), exif, image.format, getattr(image, "text", None)))
    return image


@operation
def frames(image, rng, dataset):
    dataset.seen.append(getattr(image, "n_frames", 1))
    image.seek(rng.randrange(2))
    return image


@operation
def loaded(image, rng, dataset):
    image.load()
    return image


@operation
def verified(image, rng, dataset):
    image.verify()
    return image


@operation
def closed(image, rng, dataset):
    image.close()
    return image


@operation
def within(image, rng, dataset):
    with image as same:
        dataset.seen.append(same.resize((6, 6)))
    return image


@operation
def branches(image, rng, dataset):
    rgb = image.convert("RGB")
    dataset.seen.append([rgb.resize((6, 5)), rgb.resize((7, 6)), rgb.crop((0, 0, 4, 4))])
    return rgb


@operation
def kept_for_later(image, rng, dataset):
    dataset.kept.append(image)
    return image


@operation
def tampered_tile(image, rng, dataset):
    image.tile = [tile._replace(offset=tile.offset + 1) for tile in image.tile]
    return image


@operation
def in_a_thread(image, rng, dataset):
    made = []
    thread = threading.Thread(target=lambda: made.append(attempt(lambda: image.convert("RGB"))))
    thread.start()
    thread.join()
    dataset.seen.append(made)
    return image


@operation
def saved(image, rng, dataset):
    file = io.BytesIO()
    image.save(file, format="PNG")
    dataset.seen.append(file.getvalue())
    return image


@operation
def missing_attribute(image, rng, dataset):
    return image.nonsense


@operation
def without_its_file(image, rng, dataset):
    """Removes the file while the image is in use, and restores it."""
    path = dataset.path
    os.rename(path, f"{path}.away")
    try:
        dataset.seen.append(attempt(lambda: image.convert("RGB"), dataset.root))
        dataset.seen.append(attempt(lambda: np.asarray(image), dataset.root))
    finally:
        os.rename(f"{path}.away", path)
    return image


@operation
def truncated_allowed(image, rng, dataset):
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    try:
        return image.convert("RGB")
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


# How user code opens an image


def by_path(dataset, path):
    return Image.open(path)


def by_pathlib(dataset, path):
    return Image.open(Path(path))


def by_name_in_folder(dataset, path):
    before = os.getcwd()
    os.chdir(dataset.root)
    try:
        return Image.open(os.path.basename(path))
    finally:
        os.chdir(before)


def by_handle(dataset, path):
    """Opens as torchvision's loader does; the handle is closed at once."""
    with open(path, "rb") as file:
        image = Image.open(file)
        dataset.seen.append(attempt(lambda: image.convert("RGB"), dataset.root))
        dataset.seen.append(file.tell() if not file.closed else "closed")
    return image


def by_open_handle(dataset, path):
    """Uses one handle for all samples of a file, which stays open."""
    file = dataset.handles.get(path)
    if file is None:
        file = dataset.handles[path] = open(path, "rb")  # noqa: SIM115
    dataset.seen.append((file.tell(), file.read(3)))
    return Image.open(file)


def by_bytes(dataset, path):
    with open(path, "rb") as file:
        return Image.open(io.BytesIO(file.read()))


def by_shared_bytes(dataset, path):
    """Uses one buffer for all samples, written to while an image from it is open."""
    file = dataset.buffer
    file.seek(0)
    file.truncate()
    with open(path, "rb") as source:
        file.write(source.read())
    image = Image.open(file)
    if dataset.rng.random() < 0.3:
        file.seek(dataset.rng.randrange(20))
        file.write(b"x")
    dataset.seen.append(file.tell())
    return image


def by_kept_image(dataset, path):
    """Keeps the opened image across samples."""
    if path not in dataset.images:
        dataset.images[path] = Image.open(path)
    return dataset.images[path]


def by_kept_rgb(dataset, path):
    if path not in dataset.images:
        dataset.images[path] = Image.open(path).convert("RGB")
    return dataset.images[path]


def by_link(dataset, path):
    return Image.open(os.path.join(dataset.root, "link"))


def by_formats(dataset, path):
    return Image.open(path, formats=["JPEG", "PNG"])


WAYS = (
    by_path,
    by_path,
    by_pathlib,
    by_name_in_folder,
    by_handle,
    by_open_handle,
    by_bytes,
    by_shared_bytes,
    by_kept_image,
    by_kept_rgb,
    by_link,
    by_formats,
)


# Changes of files and state in the meantime


def rewrite(dataset, path, seed):
    """Overwrites the file in place with another image."""
    with open(path, "r+b") as file:
        file.write(pooled(seed % len(FILES), seed % POOL_SEEDS))
        file.truncate()


def rewrite_alike(dataset, path, seed):
    """Overwrites the file in place with as many bytes, and restores its mtime."""
    status = os.stat(path)
    data = bytearray(Path(path).read_bytes())
    data[-min(len(data) - 1, 40 + seed) :] = bytes(min(len(data) - 1, 40 + seed))
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(dataset, path, seed):
    Path(path + ".new").write_bytes(pooled(seed % len(FILES), seed % POOL_SEEDS))
    os.replace(path + ".new", path)


def truncate(dataset, path, seed):
    os.truncate(path, os.path.getsize(path) * 2 // 3)


def remove(dataset, path, seed):
    os.unlink(path)
    Path(path).write_bytes(pooled((seed + 1) % len(FILES), seed % POOL_SEEDS))


def lose(dataset, path, seed):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def touch(dataset, path, seed):
    os.utime(path, (seed, seed))


def write_by_map(dataset, path, seed):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[len(memory) // 2] ^= 1
        memory.flush()


def switch_link(dataset, path, seed):
    os.unlink(os.path.join(dataset.root, "link"))
    os.symlink(path, os.path.join(dataset.root, "link"))


def relabel(dataset, path, seed):
    with open(os.path.join(dataset.root, "labels.json"), "w") as file:
        json.dump({str(index): seed * index for index in range(len(dataset.paths))}, file)


def change_class(dataset, path, seed):
    type(dataset).offset = seed


def change_size(dataset, path, seed):
    dataset.size = (4 + seed % 9, 5 + seed % 7)


def change_pipeline(dataset, path, seed):
    dataset.operations = dataset.operations[1:] + dataset.operations[:1]


def forget(dataset, path, seed):
    dataset.images.clear()
    dataset.kept.clear()


EVENTS = (
    rewrite,
    rewrite_alike,
    replace,
    truncate,
    remove,
    lose,
    touch,
    write_by_map,
    switch_link,
    relabel,
    change_class,
    change_size,
    change_pipeline,
    forget,
)


@dataclass(frozen=True)
class Spec:
    """A dataset, and the changes to it."""

    files: tuple
    way: object
    operations: tuple
    events: tuple
    """(number of the next sample, the change, the file, a number, whether nothing changes for a while afterwards)"""
    caches: bool
    writes_back: bool
    transforms: bool
    seed: int


@st.composite
def specs(draw):
    num_files = draw(st.integers(1, 3))
    kinds = st.one_of(st.integers(0, 15), st.integers(0, len(FILES) - 1))
    files = tuple(draw(st.tuples(kinds, st.integers(0, POOL_SEEDS - 1))) for _ in range(num_files))
    names = st.one_of(
        st.sampled_from(["to_rgb", "to_rgb", "to_gray", "resize", "resize", "crop_and_resize", "crop_somewhere"]),
        st.sampled_from(sorted(OPERATIONS)),
    )
    events = draw(
        st.lists(
            st.tuples(
                st.integers(0, 4 * num_files - 1),
                st.sampled_from(EVENTS),
                st.integers(0, num_files - 1),
                st.integers(0, 30),
                st.booleans(),
            ),
            max_size=4,
        )
    )
    return Spec(
        files,
        draw(st.sampled_from(WAYS)),
        tuple(draw(st.lists(names, min_size=1, max_size=6))),
        tuple(sorted(events, key=lambda event: event[0])),
        draw(st.booleans()) and draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(0, 99)),
    )


class Adversary:
    """A dataset built from a Spec, in a separate folder."""

    offset = 0
    size = (11, 9)

    def __init__(self, spec, root):
        self.spec, self.root = spec, str(root)
        os.makedirs(root)
        self.paths = []
        for number, (kind, seed) in enumerate(spec.files):
            self.paths.append(os.path.join(self.root, f"{number}.{FILES[kind][0]}"))
            Path(self.paths[-1]).write_bytes(pooled(kind, seed))
        os.symlink(self.paths[0], os.path.join(self.root, "link"))
        np.save(os.path.join(self.root, "array.npy"), np.arange(12.0).reshape(3, 4))
        relabel(self, None, 1)
        self.operations = spec.operations
        self.handles, self.images, self.cache = {}, {}, {}
        self.kept, self.seen = [], []
        self.buffer = io.BytesIO()
        self.rng = random.Random(spec.seed)
        self.epoch = 0
        scale = [spec.seed]
        self.label_of = lambda index: index * scale[0] + type(self).offset  # a closure
        self.scale = scale

    def __getitem__(self, index):
        self.path = self.paths[index]
        self.seen = []
        if self.spec.caches and index in self.cache:
            image = self.cache[index]
        else:
            image = self.spec.way(self, self.path)
            for name in self.operations:
                try:
                    image = OPERATIONS[name](image, self.rng, self)
                except Exception as error:
                    self.seen.append((name, look(error, self.root)))
            if self.spec.caches:
                self.cache[index] = image
        with open(os.path.join(self.root, "labels.json")) as file:
            label = json.load(file)[str(index)]
        found = {"image": image, "label": (label, self.label_of(index), self.epoch), "seen": self.seen}
        if self.spec.transforms:
            found["tensor"] = attempt(lambda: F.to_tensor(image))
            found["array"] = np.load(os.path.join(self.root, "array.npy"))
            found["cv2"] = cv2.imread(self.path)
            if Path(self.path).read_bytes()[:2] == b"\xff\xd8":  # for some PNG files it returns uninitialized memory
                found["torch"] = attempt(lambda: read_image(self.path), self.root)
        return found

    def sample(self, index):
        """Return a sample as the training loop receives it, then modify it as the loop would."""
        try:
            found = self[index]
        except Exception as error:
            return look(error, self.root), look(self.seen, self.root)
        seen = look(found, self.root)
        if self.spec.writes_back:
            for name in ("array", "cv2"):
                if found.get(name) is not None:
                    found[name][...] = 7
            with contextlib.suppress(Exception):
                found["image"].paste(1, (0, 0, 2, 2))
            self.scale[0] += 1
        return seen

    def end_epoch(self):
        """Return the images stored during the epoch, which are inspected only now."""
        seen = [attempt(lambda image=image: look(image, self.root), self.root) for image in self.kept[-5:]]
        self.epoch += 1
        return seen

    def close(self):
        for file in self.handles.values():
            file.close()
        for image in [*self.images.values(), *self.kept]:
            with contextlib.suppress(Exception):
                image.close()
        self.images.clear()
        shutil.rmtree(self.root)


def run_in_lockstep(spec, root, memo, num_epochs=3):
    """Run a dataset without and with the memo, on separate files; return the first difference, or None."""
    sides = []
    for name, used in (("plain", None), ("memo", memo)):
        kind = type("Dataset", (Adversary,), {})  # a separate class, because its attributes change
        sides.append((kind(spec, root / name), used))
    try:
        time.sleep(QUIET * 1.3)
        events = list(spec.events)
        number = 0
        for epoch in range(num_epochs):
            for index in random.Random(epoch).sample(range(len(spec.files)), len(spec.files)):
                calm = False
                while events and events[0][0] == number:
                    _, event, of, seed, calm = events.pop(0)
                    for dataset, _ in sides:
                        with contextlib.suppress(OSError, ValueError):
                            event(dataset, dataset.paths[of], seed)
                if calm:
                    time.sleep(QUIET * 1.3)
                found = []
                for dataset, used in sides:
                    with using(used):
                        found.append(dataset.sample(index))
                if found[0] != found[1]:
                    return epoch, index, *first_difference(*found)
                number += 1
            ends = []
            for dataset, used in sides:
                with using(used):
                    ends.append(dataset.end_epoch())
            if ends[0] != ends[1]:
                return epoch, "end", *first_difference(*ends)
    finally:
        for dataset, _ in sides:
            dataset.close()
    return None


def first_difference(plain, memoized, path=()):
    """Return where and how two observations differ."""
    if type(plain) is type(memoized) and isinstance(plain, (list, tuple)) and len(plain) == len(memoized):
        for number, pair in enumerate(zip(plain, memoized)):
            if pair[0] != pair[1]:
                return first_difference(*pair, (*path, number))
    return path, repr(plain)[:300], repr(memoized)[:300]


# For spawned processes, which import what they run


class Carried:
    """A dataset of image files that takes its memo to a spawned worker."""

    def __init__(self, paths, memo, quiet):
        self.paths, self.memo, self.quiet = paths, memo, quiet
        self.label = 0

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("RGB").resize((9, 9))
        left = int(torch.randint(0, 4, ()))
        return F.pil_to_tensor(image.crop((left, 0, left + 5, 5))), self.label


def put_memo_to_use(worker):
    """A worker_init_fn for `Carried`."""
    from hasten.data.memo import keys, table
    from hasten.data.memo.memo import use_in_process
    from hasten.patches import Patches

    dataset = torch.utils.data.get_worker_info().dataset
    keys.QUIET_SECONDS = dataset.quiet
    if dataset.memo is not None:
        table.install(Patches())
        use_in_process(dataset.memo)
