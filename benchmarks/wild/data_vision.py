"""Data in the formats that the scripts of `vision.toml` read."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from pathlib import Path

import numpy as np
from data_common import photograph, sentences
from PIL import Image, ImageDraw, ImageFont


def stl10(folder: Path, *, num: int = 900) -> None:
    """stl10_binary/unlabeled_X.bin and class names; the checksum cannot be right."""
    rng = np.random.default_rng(70)
    inside = folder / "stl10_binary"
    inside.mkdir()
    pixels = [photograph(rng, (96, 96), number % 10).transpose(2, 1, 0) for number in range(num)]  # column by column
    (inside / "unlabeled_X.bin").write_bytes(np.stack(pixels).tobytes())
    (inside / "class_names.txt").write_text("\n".join(f"class{n}" for n in range(10)) + "\n", encoding="utf-8")


def voc_detection(folder: Path, *, num: int = 480, width: int = 500, height: int = 375) -> None:
    """VOCdevkit/VOC2012 with images, boxes in XML and the list of a training set."""
    rng = np.random.default_rng(71)
    root = folder / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / name).mkdir(parents=True)
    names = [f"2012_{number:06d}" for number in range(num)]
    for number, name in enumerate(names):
        picture = photograph(rng, (width, height), number % 10)
        w, h = (int(v) for v in rng.integers(60, 200, 2))
        x, y = int(rng.integers(0, width - w)), int(rng.integers(0, height - h))
        picture[y : y + h, x : x + w, number % 3] = 200
        Image.fromarray(picture).save(root / "JPEGImages" / f"{name}.jpg")
        box = f"<xmin>{x}</xmin><ymin>{y}</ymin><xmax>{x + w}</xmax><ymax>{y + h}</ymax>"
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        thing = f"<object><name>car</name><difficult>0</difficult><bndbox>{box}</bndbox></object>"
        text = f"<annotation><filename>{name}.jpg</filename>{size}{thing}</annotation>"
        (root / "Annotations" / f"{name}.xml").write_text(text, encoding="utf-8")
    (root / "ImageSets" / "Main" / "train.txt").write_text("\n".join(names) + "\n", encoding="utf-8")


def yolo(folder: Path, *, num: int = 160, num_val: int = 24, num_classes: int = 5, path: str = "made") -> None:
    """{images, labels}/{train, val} with one line a box, and data.yaml, which says that all lies in `path`."""
    rng = np.random.default_rng(72)
    width, height = 640, 480
    for split, count in (("train", num), ("val", num_val)):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True)
        for number in range(count):
            picture, lines = photograph(rng, (width, height), 0), []
            for _ in range(int(rng.integers(1, 7))):
                label = int(rng.integers(0, num_classes))
                w, h = (int(v) for v in rng.integers(50, 200, 2))
                x, y = int(rng.integers(0, width - w)), int(rng.integers(0, height - h))
                picture[y : y + h, x : x + w, label % 3] = 40 * (label + 1)
                box = ((x + w / 2) / width, (y + h / 2) / height, w / width, h / height)
                lines.append(" ".join([str(label), *(f"{v:.6f}" for v in box)]))
            Image.fromarray(picture).save(folder / "images" / split / f"{number:06d}.jpg")
            (folder / "labels" / split / f"{number:06d}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    names = "".join(f"  {n}: kind{n}\n" for n in range(num_classes))
    content = f"path: {path}\ntrain: images/train\nval: images/val\nnames:\n{names}"
    (folder / "data.yaml").write_text(content, encoding="utf-8")


def two_domains(folder: Path, *, num: int = 120, num_test: int = 20, size: int = 256) -> None:
    """{train, test}/{A, B}/NUMBER.jpg: two kinds of pictures, not paired."""
    rng = np.random.default_rng(73)
    for split, count in (("train", num), ("test", num_test)):
        for label, domain in ((1, "A"), (6, "B")):
            (folder / split / domain).mkdir(parents=True)
            for number in range(count):
                Image.fromarray(photograph(rng, (size, size), label)).save(
                    folder / split / domain / f"{number:05d}.jpg"
                )


def nuclei(folder: Path, *, num: int = 200, width: int = 256, height: int = 256) -> None:
    """images/NUMBER.png with bright disks, and masks/0/NUMBER.png that are 255 there."""
    rng = np.random.default_rng(74)
    (folder / "images").mkdir()
    (folder / "masks" / "0").mkdir(parents=True)
    y, x = np.mgrid[0:height, 0:width]
    for number in range(num):
        picture = photograph(rng, (width, height), 0)
        inside = np.zeros((height, width), bool)
        for _ in range(12):
            cx, cy, radius = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(6, 16)
            inside |= (x - cx) ** 2 + (y - cy) ** 2 < radius**2
        picture[inside] = picture[inside] // 2 + 110
        Image.fromarray(picture).save(folder / "images" / f"{number:05d}.png")
        Image.fromarray(inside.astype(np.uint8) * 255).save(folder / "masks" / "0" / f"{number:05d}.png")


def cats_and_dogs(folder: Path, *, num: int = 1800, num_test: int = 40) -> None:
    """train.zip with train/{cat, dog}.NUMBER.jpg and test.zip with test/NUMBER.jpg, as Kaggle packs them."""
    rng = np.random.default_rng(75)
    for split, count in (("train", num), ("test", num_test)):
        with zipfile.ZipFile(folder / f"{split}.zip", "w") as archive:
            for number in range(count):
                label = number % 2
                size = (int(rng.integers(320, 501)), int(rng.integers(280, 401)))
                name = f"{('cat', 'dog')[label]}.{number // 2}.jpg" if split == "train" else f"{number + 1}.jpg"
                packed = io.BytesIO()
                Image.fromarray(photograph(rng, size, 4 * label)).save(packed, "JPEG")
                archive.writestr(zipfile.ZipInfo(f"{split}/{name}"), packed.getvalue())


def captions(folder: Path, *, name: str, num: int = 240, num_val: int = 40, each: int = 5, longest: int = 50) -> None:
    """{TRAIN, VAL}_{IMAGES, CAPTIONS, CAPLENS} and WORDMAP of images in HDF5 with `each` captions an image."""
    import h5py

    rng = np.random.default_rng(76)
    lines = [line.rstrip(".").split() for line in sentences((num + num_val) * each, seed=77, words=1500)]
    words = sorted({word for line in lines for word in line})
    index = {word: n + 1 for n, word in enumerate([*words, "<unk>", "<start>", "<end>"])} | {"<pad>": 0}
    (folder / f"WORDMAP_{name}.json").write_text(json.dumps(index), encoding="utf-8")
    for split, first, count in (("TRAIN", 0, num), ("VAL", num, num_val)):
        with h5py.File(folder / f"{split}_IMAGES_{name}.hdf5", "w") as file:
            file.attrs["captions_per_image"] = each
            shown = file.create_dataset("images", (count, 3, 256, 256), dtype="uint8")
            for number in range(count):
                shown[number] = photograph(rng, (256, 256), number % 10).transpose(2, 0, 1)
        mine = lines[first * each : (first + count) * each]
        coded = [
            [index["<start>"], *(index[word] for word in line), index["<end>"], *[0] * (longest - len(line))]
            for line in mine
        ]
        for kind, content in (("CAPTIONS", coded), ("CAPLENS", [len(line) + 2 for line in mine])):
            (folder / f"{split}_{kind}_{name}.json").write_text(json.dumps(content), encoding="utf-8")


def super_resolution(folder: Path, *, num: int = 5000, num_eval: int = 5, scale: int = 3, patch: int = 33) -> None:
    """train.h5 with patches of gray images, and eval.h5 with whole images: coarse (lr) and as they were (hr)."""
    import h5py

    rng = np.random.default_rng(78)

    def pair(size: tuple[int, int], label: int) -> tuple[np.ndarray, np.ndarray]:
        fine = Image.fromarray(photograph(rng, size, label, 1)[..., 0])
        small = fine.resize((size[0] // scale, size[1] // scale), Image.Resampling.BICUBIC)
        coarse = small.resize(size, Image.Resampling.BICUBIC)
        return np.asarray(coarse, np.float32), np.asarray(fine, np.float32)

    whole = [pair((330, 264), number % 10) for number in range(12)]
    with h5py.File(folder / "train.h5", "w") as file:
        corners = rng.integers(0, (264 - patch, 330 - patch), (num, 2))
        for key, which in (("lr", 0), ("hr", 1)):
            cut = [
                whole[number % len(whole)][which][y : y + patch, x : x + patch]
                for number, (y, x) in enumerate(corners)
            ]
            file.create_dataset(key, data=np.stack(cut))
    with h5py.File(folder / "eval.h5", "w") as file:
        for number, (coarse, fine) in enumerate(pair((255, 255), number) for number in range(num_eval)):
            file.create_dataset(f"lr/{number}", data=coarse)
            file.create_dataset(f"hr/{number}", data=fine)


def brains(folder: Path, *, names: list[str], size: list[int] | tuple[int, ...] = (160, 160, 112)) -> None:
    """NAME.nii.gz, 16 bits: a bright ellipsoid with folds in noise."""
    import nibabel

    rng = np.random.default_rng(79)
    axes = np.meshgrid(*(np.linspace(-1, 1, n, dtype=np.float32) for n in size), indexing="ij")
    radius = sum(axis**2 for axis in axes) ** 0.5
    for name in names:
        folds = sum(np.sin(axis * rng.uniform(8, 20)) for axis in axes)
        voxels = np.where(radius < rng.uniform(0.7, 0.85), 300 + 60 * folds, 5) + rng.normal(0, 4, size)
        nibabel.save(nibabel.Nifti1Image(voxels.clip(0, 1000).astype(np.int16), np.eye(4)), folder / f"{name}.nii.gz")


def chest_x_rays(folder: Path, *, num: int = 90, size: int = 1024) -> None:
    """images/PATIENT.dcm with JPEG pixels, and train.csv with the boxes of every third patient."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.encaps import encapsulate
    from pydicom.uid import JPEGBaseline8Bit, SecondaryCaptureImageStorage

    rng = np.random.default_rng(80)
    (folder / "images").mkdir()
    rows: list[list[object]] = []
    for number in range(num):
        patient = f"{number:08d}-made"
        pixels = photograph(rng, (size, size), 1, 1)[..., 0]
        for _ in range(1 + number % 2 if number % 3 == 0 else 0):
            w, h = (int(v) for v in rng.integers(150, 350, 2))
            x, y = int(rng.integers(0, size - w)), int(rng.integers(0, size - h))
            pixels[y : y + h, x : x + w] = pixels[y : y + h, x : x + w] // 2 + 120
            rows.append([patient, "F", 50, "PA", x, y, w, h, 1, "Lung Opacity"])
        if number % 3:
            rows.append([patient, "M", 40, "AP", "", "", "", "", 0, "Normal"])
        packed = io.BytesIO()
        Image.fromarray(pixels).save(packed, "JPEG", quality=90)
        data = Dataset()
        data.file_meta = FileMetaDataset()
        data.file_meta.TransferSyntaxUID = JPEGBaseline8Bit
        data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = SecondaryCaptureImageStorage
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = f"1.2.3.{number + 1}"
        data.PatientID, data.PatientSex, data.PatientAge, data.ViewPosition = patient, "F", "050Y", "PA"
        data.Modality, data.Rows, data.Columns, data.SamplesPerPixel = "CR", size, size, 1
        data.PhotometricInterpretation, data.PixelRepresentation = "MONOCHROME2", 0
        data.BitsAllocated, data.BitsStored, data.HighBit = 8, 8, 7
        data.PixelData = encapsulate([packed.getvalue()])
        data["PixelData"].VR = "OB"
        data.save_as(folder / "images" / f"{patient}.dcm", enforce_file_format=True)
    columns = [
        "patientId",
        "PatientSex",
        "PatientAge",
        "ViewPosition",
        "x",
        "y",
        "width",
        "height",
        "Target",
        "class",
    ]
    with (folder / "train.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *rows])


def words_in_lmdb(folder: Path, *, sets: dict[str, int]) -> None:
    """PATH -> how many: an LMDB of pictures of words and what they say, as create_lmdb_dataset.py writes it."""
    import lmdb

    rng = np.random.default_rng(81)
    words = sorted({word for line in sentences(2000, seed=82) for word in line.rstrip(".").split()})
    for path, count in sets.items():
        (folder / path).mkdir(parents=True)
        environment = lmdb.open(str(folder / path), map_size=1 << 28)
        with environment.begin(write=True) as transaction:
            for number in range(1, count + 1):
                word = words[int(rng.integers(0, len(words)))]
                font = ImageFont.load_default(size=int(rng.integers(18, 30)))
                left, top, right, bottom = font.getbbox(word)
                size = (int(right - left) + 12, int(bottom - top) + 10)
                picture = Image.fromarray(photograph(rng, size, 0))
                ImageDraw.Draw(picture).text((6 - left, 5 - top), word, fill=(0, 0, 0), font=font)
                packed = io.BytesIO()
                picture.save(packed, "JPEG", quality=90)
                transaction.put(f"image-{number:09d}".encode(), packed.getvalue())
                transaction.put(f"label-{number:09d}".encode(), word.encode())
            transaction.put(b"num-samples", str(count).encode())
        environment.close()


def videos(folder: Path, *, num: int = 60, num_classes: int = 10, frames: int = 32) -> None:
    """jpg/CLASS/VIDEO/image_00001.jpg, annotation.json that splits them, and a folder for results."""
    rng = np.random.default_rng(83)
    labels, database = [f"class{n:02d}" for n in range(num_classes)], {}
    for number in range(num):
        label, name = labels[number % num_classes], f"v_{number:04d}"
        inside = folder / "jpg" / label / name
        inside.mkdir(parents=True)
        wide = photograph(rng, (320 + 4 * frames, 240), number % num_classes)
        for frame in range(frames):
            Image.fromarray(wide[:, 4 * frame : 4 * frame + 320]).save(inside / f"image_{frame + 1:05d}.jpg")
        subset = "validation" if number >= num - 10 else "training"
        database[name] = {"subset": subset, "annotations": {"label": label, "segment": [1, frames + 1]}}
    content = json.dumps({"labels": labels, "database": database})
    (folder / "annotation.json").write_text(content, encoding="utf-8")
    (folder / "results").mkdir()
    (folder / "results" / "README").write_text("Results go here.\n", encoding="utf-8")


def model_net(folder: Path, *, num: int = 100, num_test: int = 20, points: int = 10000) -> None:
    """ModelNet10 as text: CLASS/CLASS_0001.txt with six numbers a point, and the lists of names."""
    rng = np.random.default_rng(84)
    classes = ["bathtub", "bed", "chair", "desk", "dresser", "monitor", "night_stand", "sofa", "table", "toilet"]
    (folder / "modelnet10_shape_names.txt").write_text("\n".join(classes) + "\n", encoding="utf-8")
    for split, first, count in (("train", 1, num), ("test", num + 1, num_test)):
        names = [f"{classes[n % len(classes)]}_{n:04d}" for n in range(first, first + count)]
        (folder / f"modelnet10_{split}.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
        for name in names:
            kind = name.rpartition("_")[0]
            (folder / kind).mkdir(exist_ok=True)
            normals = rng.normal(size=(points, 3))
            normals /= np.linalg.norm(normals, axis=1, keepdims=True)
            stretch = np.array([1.0, 0.3 + 0.07 * classes.index(kind), 0.6])
            both = np.concatenate([normals * stretch + rng.normal(0, 0.01, (points, 3)), normals], axis=1)
            np.savetxt(folder / kind / f"{name}.txt", both, fmt="%.6f", delimiter=",")


def blender_scene(folder: Path, *, num: int = 20, size: int = 800) -> None:
    """{train, val, test}/r_0.png of a ball with stripes, transparent around it, and the cameras of each."""
    rng = np.random.default_rng(85)
    y, x = np.mgrid[0:size, 0:size]
    inside = (x - size / 2) ** 2 + (y - size / 2) ** 2 < (0.3 * size) ** 2
    for split, count in (("train", num), ("val", 2), ("test", 2)):
        (folder / split).mkdir()
        frames = []
        for number in range(count):
            angle, height = rng.uniform(0, 2 * np.pi), rng.uniform(0.2, 1.2)
            away = np.array([np.cos(angle) * np.cos(height), np.sin(angle) * np.cos(height), np.sin(height)])
            right = np.cross([0, 0, 1], away)
            right /= np.linalg.norm(right)
            camera = np.eye(4)
            camera[:3, :4] = np.stack([right, np.cross(away, right), away, 4 * away], axis=1)
            color = photograph(rng, (size, size), 0)
            color[..., 0] = 128 + 100 * np.cos(x / 30 + angle)
            shown = np.dstack([np.where(inside[..., None], color, 0), inside * 255]).astype(np.uint8)
            Image.fromarray(shown).save(folder / split / f"r_{number}.png", compress_level=3)
            frames.append({"file_path": f"./{split}/r_{number}", "transform_matrix": camera.tolist()})
        content = {"camera_angle_x": 0.6911112070083618, "frames": frames}
        (folder / f"transforms_{split}.json").write_text(json.dumps(content), encoding="utf-8")
