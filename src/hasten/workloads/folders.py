"""Which images lie in a folder, what each is labelled, and how one is opened: three layouts, one answer.

In: a folder. Out: `Images`. Refuses to know PyTorch. The bundled scripts read by it.

- NIH ChestX-ray14: `Data_Entry_2017.csv` ("Image Index", "Finding Labels" joined by |);
- `labels.csv`, or the only .csv there is: the file's name first, then one column of 0 and 1 a label, and
  perhaps a column `fold` (or `split`) of train and val;
- class folders: `<class>/*.png`, or `train/<class>/` and `val/<class>/`; every class is a label.

Beside a .csv the images lie anywhere below. A row that names a missing image is skipped and counted.
Anything else that is wrong is an ImageError of one line.
"""

import csv
import os
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

IMAGE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif"}
TRUTH = {
    "": 0.0,
    "0": 0.0,
    "0.0": 0.0,
    "1": 1.0,
    "1.0": 1.0,
    "-1": 0.0,
    "-1.0": 0.0,
}  # -1: uncertain (CheXpert)
FOLDS = {"train": "train", "training": "train"} | dict.fromkeys(["val", "valid", "validation", "test"], "val")
FOLD_COLUMNS = {"fold", "split", "set", "subset"}
FEWEST = 8  # images that can be parted for training and validation
ORIENTATION = 0x0112  # the EXIF tag that says how a camera was held


class ImageError(ValueError):
    """The folder, or an image in it, cannot be used; the message is one line and names it."""


@dataclass(frozen=True)
class Images:
    """Images and their labels; `targets[i][k]` is 1.0 where image i has label k."""

    paths: list[Path]
    targets: list[list[float]]
    labels: list[str]
    folds: list[str]  # "train" or "val" an image, or empty: the data does not say
    num_missing: int = 0  # images that the labels file names and nobody has


def read_images(folder: Path) -> Images:
    """Read whichever layout lies in `folder`."""
    images = find_images(folder)
    tables = sorted(folder.glob("Data_Entry_2017*.csv")) or sorted(folder.glob("labels.csv"))
    others = sorted(folder.glob("*.csv"))
    if not tables and len(others) == 1:
        tables = others
    return read_table(tables[0], images) if tables else read_class_folders(folder, images)


def read_classes(folder: Path) -> Images:
    """The same, where each image has exactly one label: its class."""
    images = read_images(folder)
    for path, target in zip(images.paths, images.targets):
        if sum(target) != 1.0:
            raise ImageError(f"{path}: {sum(target):.0f} labels; this script sorts images into classes, one for each")
    return images


def read_unlabelled(folder: Path) -> Images:
    """Every image below `folder`; which part it is for where all lie below train/ and val/ (or test/)."""
    images = find_images(folder)
    tops = [path.relative_to(folder).parts[:-1] for path in images]
    named = [next((FOLDS[part.lower()] for part in parts if part.lower() in FOLDS), "") for parts in tops]
    return Images(paths=images, targets=[[] for _ in images], labels=[], folds=named if all(named) else [])


def find_images(folder: Path) -> list[Path]:
    """Every image below `folder`, in the order of their paths; hidden ones are left out. Raises ImageError for none."""
    if not folder.is_dir():
        raise ImageError(f"{folder}: no such folder")
    found: list[Path] = []
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = [n for n in sorted(files) if not n.startswith(".") and Path(n).suffix.lower() in IMAGE_ENDINGS]
        found.extend(Path(place, name) for name in names)
    if not found:
        raise ImageError(f"{folder}: no image below it ({' '.join(sorted(IMAGE_ENDINGS))})")
    return found


def read_table(table: Path, images: list[Path]) -> Images:
    """Read a labels file of either kind."""
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ImageError(f"{table}: not a readable .csv ({error})") from None
    if len(rows) < 2 or len(rows[0]) < 2:
        raise ImageError(f"{table}: expected a header and rows with the file's name and its labels, by commas")
    header, rows = [name.strip() for name in rows[0]], rows[1:]
    rows = [row + [""] * (len(header) - len(row)) for row in rows]
    if "Finding Labels" in header:
        findings = [set(row[header.index("Finding Labels")].split("|")) - {""} for row in rows]
        labels = sorted(set().union(*findings))
        targets = [[float(label in found) for label in labels] for found in findings]
        name_column = header.index("Image Index") if "Image Index" in header else 0
    else:
        columns = [k for k in range(1, len(header)) if all(row[k].strip() in TRUTH for row in rows)]
        labels = [header[k] for k in columns]
        targets = [[TRUTH[row[k].strip()] for k in columns] for row in rows]
        name_column = 0
    if not labels:
        raise ImageError(f"{table}: no column of 0 and 1, and no 'Finding Labels'")
    fold_columns = [k for k, name in enumerate(header) if name.lower() in FOLD_COLUMNS]
    folds = [FOLDS.get(row[fold_columns[0]].strip().lower(), "") for row in rows] if fold_columns else []
    return match(table, [row[name_column].strip() for row in rows], images, targets, labels, folds)


def match(
    table: Path,
    names: list[str],
    images: list[Path],
    targets: list[list[float]],
    labels: list[str],
    folds: list[str],
) -> Images:
    """Find the image of each row: by its path below the folder, else by its name alone."""
    by_name = {path.name: path for path in images}
    twice = {name for name, count in Counter(path.name for path in images).items() if count > 1}
    by_path = {path.relative_to(table.parent).as_posix(): path for path in images}
    by_name |= by_path
    there = [i for i, name in enumerate(names) if name in by_name]
    unclear = next((names[i] for i in there if names[i] in twice and names[i] not in by_path), None)
    if unclear is not None:
        raise ImageError(f"{table}: {unclear} is more than one image; name it with its folder")
    if not there:
        raise ImageError(f"{table}: none of the {len(names)} images it names is below {table.parent}")
    return Images(
        paths=[by_name[names[i]] for i in there],
        targets=[targets[i] for i in there],
        labels=labels,
        folds=[folds[i] for i in there] if folds and all(folds) else [],
        num_missing=len(names) - len(there),
    )


def read_class_folders(folder: Path, images: list[Path]) -> Images:
    """Every image below a class folder has that one label."""
    parts = [path.relative_to(folder).parts for path in images]
    has_folds = all(len(part) > 2 and part[0].lower() in FOLDS for part in parts)
    where = 1 if has_folds else 0
    named = [(path, part) for path, part in zip(images, parts) if len(part) > where + 1]
    labels = sorted({part[where] for _, part in named})
    if len(labels) < 2:
        raise ImageError(f"{folder}: no labels: neither Data_Entry_2017.csv nor labels.csv nor two class folders")
    return Images(
        paths=[path for path, _ in named],
        targets=[[float(part[where] == label) for label in labels] for _, part in named],
        labels=labels,
        folds=[FOLDS[part[0].lower()] for _, part in named] if has_folds else [],
    )


def choose(images: Images, *, num_images: int | None = None) -> tuple[list[int], list[int]]:
    """(training part, validation part), of all images or of the same random subset each time: by folds, else 7 to 1.

    Raises ImageError when there are too few images for both.
    """
    there = len(images.paths)
    number = min(num_images or there, there)
    if number < FEWEST:
        missing = f", {images.num_missing} more are named and missing" if images.num_missing else ""
        said = f"{there} usable images{missing}" if number == there else f"{number} images were asked for"
        raise ImageError(f"{images.paths[0].parent}: {said}; at least {FEWEST} are needed")
    chosen = random.Random(0).sample(range(there), number)
    if images.folds:
        train = [i for i in chosen if images.folds[i] == "train"]
        val = [i for i in chosen if images.folds[i] == "val"]
        if len(train) > 1 and val:
            return train, val
    return [i for k, i in enumerate(chosen) if k % 8 != 7], chosen[7::8]


def open_image(path: Path) -> Image.Image:
    """Decode an image: upright as its EXIF says, and one of 16 or 32 bits stretched over its own range to 8.

    Raises ImageError, naming the file, when it is torn or no image.
    """
    try:
        with Image.open(path) as image:
            image.load()
            if image.mode[0] in "IF":
                deep = np.asarray(image, dtype=np.float32)
                return Image.fromarray(np.uint8((deep - deep.min()) / max(np.ptp(deep), 1e-6) * 255))
            if image.mode == "P":
                return image.convert("RGBA")  # a palette may be transparent
            return ImageOps.exif_transpose(image) if image.getexif().get(ORIENTATION, 1) != 1 else image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ImageError(f"{path}: cannot be read ({reason})") from None
