"""Data in the formats that public scripts read: right sizes and types, made of seeded noise with something to learn.

Each maker writes into an empty folder and depends on its arguments alone.
"""

from __future__ import annotations

import csv
import gzip
import json
import struct
import wave
from pathlib import Path

import numpy as np
from PIL import Image


def photograph(rng: np.random.Generator, size: tuple[int, int], label: int, channels: int = 3) -> np.ndarray:
    """(height, width, channels) uint8: smooth noise, grain as in a photograph, and a wave that tells the label."""
    width, height = size
    pixels = rng.normal(120, 3, (height, width, channels)).astype(np.float32)
    for cells, strength in ((4, 35.0), (12, 15.0), (40, 8.0)):
        cells = min(cells, width, height)
        coarse = rng.normal(0, strength, (channels, cells, cells)).astype(np.float32)
        smooth = [np.asarray(Image.fromarray(one).resize(size, Image.Resampling.BILINEAR)) for one in coarse]
        pixels += np.stack(smooth, axis=-1)
    phase = np.linspace(0, 2 * np.pi * (1 + label), width) + rng.uniform(0, 6)
    pixels += 15 * np.cos(phase)[None, :, None]
    return pixels.clip(0, 255).astype(np.uint8)


def mnist(folder: Path, *, num: int = 4000, num_test: int = 1000, inside: str = "MNIST/raw", size: int = 28) -> None:
    """The four IDX files of MNIST, Fashion-MNIST or KMNIST, packed and not, where torchvision looks for them."""
    raw = folder / inside
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, count in (("train", num), ("t10k", num_test)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        images = np.stack([photograph(rng, (size, size), int(label), 1)[..., 0] for label in labels])
        for name, data in (
            (f"{part}-images-idx3-ubyte", struct.pack(">IIII", 2051, count, size, size) + images.tobytes()),
            (f"{part}-labels-idx1-ubyte", struct.pack(">II", 2049, count) + labels.tobytes()),
        ):
            (raw / name).write_bytes(data)
            with gzip.open(raw / f"{name}.gz", "wb", compresslevel=1) as file:
                file.write(data)


def image_folder(
    folder: Path,
    *,
    num: int = 400,
    num_classes: int = 10,
    splits: tuple[str, ...] | list[str] = ("train", "val"),
    width: int = 400,
    height: int = 300,
    suffix: str = "jpg",
) -> None:
    """SPLIT/CLASS/NUMBER.jpg, `num` in all; every split after the first has a quarter of that more."""
    rng = np.random.default_rng(1)
    for position, split in enumerate(splits):
        for number in range(num if position == 0 else max(num_classes, num // 4)):
            label = number % num_classes
            path = folder / split / f"class{label:03d}" / f"{number:05d}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(photograph(rng, (width, height), label)).save(path)


def images(folder: Path, *, num: int = 200, width: int = 400, height: int = 300, suffix: str = "jpg") -> None:
    """NUMBER.jpg, without labels."""
    rng = np.random.default_rng(2)
    for number in range(num):
        Image.fromarray(photograph(rng, (width, height), number % 10)).save(folder / f"{number:05d}.{suffix}")


def images_and_masks(
    folder: Path,
    *,
    num: int = 60,
    num_classes: int = 2,
    width: int = 320,
    height: int = 240,
    images: str = "imgs",
    masks: str = "masks",
    mask_suffix: str = "",
    suffix: str = "jpg",
) -> None:
    """Images with ellipses, and PNG masks of the same stem (and `mask_suffix`) that say where they are."""
    rng = np.random.default_rng(3)
    (folder / images).mkdir(parents=True)
    (folder / masks).mkdir(parents=True)
    y, x = np.mgrid[0:height, 0:width]
    for number in range(num):
        picture = photograph(rng, (width, height), 0).astype(np.float32)
        mask = np.zeros((height, width), np.uint8)
        for label in range(1, num_classes):
            cx, cy, a, b = rng.uniform(0.2, 0.8) * width, rng.uniform(0.2, 0.8) * height, width / 6, height / 5
            inside = ((x - cx) / a) ** 2 + ((y - cy) / b) ** 2 < 1
            mask[inside] = label
            picture[inside] += 30 + 5 * label
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(folder / images / f"{number:05d}.{suffix}")
        Image.fromarray(mask).save(folder / masks / f"{number:05d}{mask_suffix}.png")


WORDS = 4000
_SYLLABLES = ["ka", "lo", "mi", "ra", "ten", "so", "ve", "du", "an", "or", "is", "pe", "ul", "ni", "gra", "fo"]


def sentences(num: int, *, seed: int = 4, words: int = WORDS) -> list[str]:
    """Sentences over a Zipf vocabulary in which each word makes the next one likelier."""
    rng = np.random.default_rng(seed)
    vocabulary = ["".join(rng.choice(_SYLLABLES, rng.integers(1, 4))) for _ in range(words)]
    ranks = np.minimum(rng.zipf(1.3, num * 14), words) - 1
    found: list[str] = []
    position = 0
    for length in rng.integers(6, 15, num):
        line = ranks[position : position + length]
        line[1::2] = (line[::2][: len(line[1::2])] * 7 + 3) % words
        found.append(" ".join(vocabulary[word] for word in line) + ".")
        position += int(length)
    return found


def text(folder: Path, *, files: dict[str, int] | None = None, words: int = WORDS) -> None:
    """Plain text files of so many sentences each, one a line."""
    for number, (name, count) in enumerate((files or {"input.txt": 20000}).items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(sentences(count, seed=10 + number, words=words)) + "\n", encoding="utf-8")


def table(
    folder: Path,
    *,
    name: str = "data.csv",
    num: int = 5000,
    numbers: list[str] | int = 10,
    categories: dict[str, int] | None = None,
    target: str = "target",
    num_classes: int = 0,
    dates: str = "",
    header: bool = True,
) -> None:
    """A CSV file: numbers, categories (name -> how many), an hourly date column if `dates` names it, and a target.

    `num_classes`: of the target; 0: it is a number.
    """
    rng = np.random.default_rng(5)
    columns = [f"x{n}" for n in range(numbers)] if isinstance(numbers, int) else list(numbers)
    steps = np.arange(num)
    values = {c: rng.normal(size=num) + np.sin(steps / (20 + 3 * n)) for n, c in enumerate(columns)}
    score = sum((1 + n % 3) * column for n, column in enumerate(values.values())) + rng.normal(size=num)
    rows: dict[str, list[object]] = {}
    if dates:
        start = np.datetime64("2016-07-01T00:00:00")
        rows[dates] = [str(start + np.timedelta64(int(n), "h")).replace("T", " ") for n in steps]
    rows.update({c: [f"{v:.5f}" for v in column] for c, column in values.items()})
    for c, count in (categories or {}).items():
        rows[c] = [f"{c}{v}" for v in rng.integers(0, count, num)]
    if num_classes:
        edges = np.quantile(score, np.linspace(0, 1, num_classes + 1)[1:-1])
        rows[target] = [int(v) for v in np.digitize(score, edges)]
    else:
        rows[target] = [f"{v:.5f}" for v in score]
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if header:
            writer.writerow(rows)
        writer.writerows(zip(*rows.values()))


def arrays(folder: Path, *, files: dict[str, dict[str, object]]) -> None:
    """NumPy files: name -> {shape, dtype, high (of whole numbers)}; a name in .npz has {arrays: {...}} of the same kind."""
    rng = np.random.default_rng(6)

    def made(spec: dict[str, object]) -> np.ndarray:
        shape, dtype = tuple(spec["shape"]), str(spec.get("dtype", "float32"))  # type: ignore[arg-type]
        if np.dtype(dtype).kind in "iu":
            return rng.integers(0, int(spec.get("high", 10)), shape).astype(dtype)  # type: ignore[call-overload]
        return rng.normal(size=shape).astype(dtype)

    for name, spec in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".npz"):
            np.savez(path, **{key: made(inner) for key, inner in spec["arrays"].items()})  # type: ignore[attr-defined]
        else:
            np.save(path, made(spec))


def sounds(
    folder: Path, *, num: int = 300, seconds: float = 1.0, rate: int = 16000, classes: list[str] | None = None
) -> None:
    """CLASS/NUMBER.wav, 16 bits, one channel: a tone of the class in noise."""
    rng = np.random.default_rng(7)
    names = classes or ["down", "go", "left", "no", "right", "stop", "up", "yes"]
    time = np.arange(int(seconds * rate)) / rate
    for number in range(num):
        label = number % len(names)
        signal = 0.3 * np.sin(2 * np.pi * (200 + 90 * label) * time) + rng.normal(0, 0.05, len(time))
        path = folder / names[label] / f"{number:05d}_nohash_0.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes((signal.clip(-1, 1) * 32767).astype("<i2").tobytes())


def coco(folder: Path, *, num: int = 60, num_classes: int = 5, width: int = 640, height: int = 480) -> None:
    """{train2017, val2017} with images, and annotations/instances_*.json with boxes and polygons."""
    rng = np.random.default_rng(8)
    (folder / "annotations").mkdir()
    categories = [{"id": n + 1, "name": f"kind{n}", "supercategory": "kind"} for n in range(num_classes)]
    for split, count in (("train2017", num), ("val2017", max(8, num // 4))):
        (folder / split).mkdir()
        shown, boxes = [], []
        for number in range(count):
            name = f"{number:012d}.jpg"
            picture = photograph(rng, (width, height), 0)
            for _ in range(int(rng.integers(1, 5))):
                label = int(rng.integers(0, num_classes))
                w, h = (int(v) for v in rng.integers(60, 200, 2))
                x, y = int(rng.integers(0, width - w)), int(rng.integers(0, height - h))
                picture[y : y + h, x : x + w, label % 3] = 40 * (label + 1)
                polygon = [x, y, x + w, y, x + w, y + h, x, y + h]
                boxes.append(
                    {
                        "id": len(boxes) + 1,
                        "image_id": number,
                        "category_id": label + 1,
                        "bbox": [x, y, w, h],
                        "area": w * h,
                        "iscrowd": 0,
                        "segmentation": [polygon],
                    }
                )
            Image.fromarray(picture).save(folder / split / name)
            shown.append({"id": number, "file_name": name, "width": width, "height": height})
        content = {"images": shown, "annotations": boxes, "categories": categories}
        (folder / "annotations" / f"instances_{split}.json").write_text(json.dumps(content), encoding="utf-8")
