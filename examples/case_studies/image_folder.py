"""Find the images of a data set and their labels, and split them into training and validation.

Each function returns `(train, val, labels)`: two lists of `(path, target)`, and the names of the labels. With `num_images`,
only so many are taken, the same ones each time.
"""

import csv
import random

SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


def find_images(folder):
    """Return the paths of all images below a folder."""
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))


def image_folder(folder, num_images=None):
    """Read `train/<class>/` and `val/<class>/` (or `test/<class>/`), or `<class>/`. A target is the index of a class."""
    val_folder = next((folder / name for name in ("val", "test") if (folder / name).is_dir()), None)
    train_folder = folder / "train" if val_folder else folder
    labels = sorted(path.name for path in train_folder.iterdir() if find_images(path))
    if len(labels) < 2:
        raise FileNotFoundError(f"{train_folder}: no two folders of images, one for each class")
    train, val = (
        [(path, target) for target, label in enumerate(labels) for path in find_images(part / label)] if part else []
        for part in (train_folder, val_folder)
    )
    return split(folder, train, val, num_images, labels)


def labels_file(folder, num_images=None):
    """Read `labels.csv`: the name of an image, a column of 0 and 1 for each label, and a column of "train" and "val".

    A target is a list of zeros and ones. A folder without such a file is read by `image_folder`.
    """
    if not (folder / "labels.csv").exists():
        train, val, labels = image_folder(folder, num_images)
        one_hot = [[float(target == label) for label in range(len(labels))] for target in range(len(labels))]
        train, val = ([(path, one_hot[target]) for path, target in part] for part in (train, val))
        return train, val, labels
    with open(folder / "labels.csv", newline="") as file:
        header, *rows = csv.reader(file)
    paths = {path.name: path for path in find_images(folder)}
    parts = {"train": [], "val": []}
    for name, *targets, part in rows:
        if part not in parts:
            raise ValueError(f"the last column is train or val, not {part!r}")
        if name in paths:  # a row whose image is missing is skipped
            parts[part].append((paths[name], [float(target) for target in targets]))
    return split(folder, parts["train"], parts["val"], num_images, header[1:-1])


def unlabeled(folder, num_images=None):
    """Take every image below the folder; targets are None."""
    return split(folder, [(path, None) for path in find_images(folder)], [], num_images, [])


def split(folder, train, val, num_images, labels):
    """Shuffle both parts, take an eighth of the images for validation where there are none yet, and cut off the rest."""
    random.Random(0).shuffle(train)
    random.Random(0).shuffle(val)
    if not val:
        val, train = train[: len(train) // 8], train[len(train) // 8 :]
    if num_images:
        num_val = min(len(val), num_images // 8)
        train, val = train[: num_images - num_val], val[:num_val]
    if not val or not train:
        raise FileNotFoundError(f"{folder}: too few images; at least 8 are needed")
    return train, val, labels
