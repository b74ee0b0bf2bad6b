"""Data in the formats that the scripts of `pytorch_examples.toml` and `pytorch_more.toml` read."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
from data_common import images_and_masks, photograph, sentences


def cifar(folder: Path, *, classes: int = 10, num: int = 10000, num_test: int = 2500) -> None:
    """CIFAR-10 or CIFAR-100 as torchvision unpacks it; its checksums cannot be right."""
    rng = np.random.default_rng(20)
    names = [f"class{label:03d}" for label in range(classes)]
    inside = folder / ("cifar-10-batches-py" if classes == 10 else "cifar-100-python")
    key = "labels" if classes == 10 else "fine_labels"
    inside.mkdir()

    def write(name: str, count: int) -> None:
        labels = [int(label) for label in rng.permutation(np.arange(count) % classes)]
        pixels = [photograph(rng, (32, 32), label % 10).transpose(2, 0, 1).reshape(-1) for label in labels]
        content = {"data": np.stack(pixels), key: labels}
        (inside / name).write_bytes(pickle.dumps(content))

    if classes == 10:
        for part in range(1, 6):
            write(f"data_batch_{part}", num // 5)
        write("test_batch", num_test)
        (inside / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    else:
        write("train", num)
        write("test", num_test)
        (inside / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))


def voc_segmentation(folder: Path, *, num: int = 120, num_val: int = 20, num_classes: int = 21) -> None:
    """VOCdevkit/VOC2012 with images, masks and the lists of a training and a validation set."""
    root = "VOCdevkit/VOC2012"
    images_and_masks(
        folder,
        num=num + num_val,
        num_classes=num_classes,
        width=500,
        height=375,
        images=f"{root}/JPEGImages",
        masks=f"{root}/SegmentationClass",
    )
    lists = folder / root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    names = [f"{number:05d}" for number in range(num + num_val)]
    (lists / "train.txt").write_text("\n".join(names[:num]) + "\n", encoding="utf-8")
    (lists / "val.txt").write_text("\n".join(names[num:]) + "\n", encoding="utf-8")


def sine_waves(folder: Path, *, num: int = 100, length: int = 1000, period: int = 20) -> None:
    """traindata.pt: (num, length) float64, as generate_sine_wave.py of pytorch/examples writes it."""
    import torch

    rng = np.random.default_rng(21)
    steps = np.arange(length) + rng.integers(-4 * period, 4 * period, (num, 1))
    with (folder / "traindata.pt").open("wb") as file:
        torch.save(np.sin(steps / period), file)


def wiki_text(folder: Path, *, words: int = 33278, tokens: int = 400000) -> None:
    """{train, valid, test}.txt with as many words as WikiText-2 has, as often as words are, in lines of 20."""
    rng = np.random.default_rng(22)
    ranks = np.arange(words)
    often = 1 / (ranks + 2.7)
    for split, count in (("train", tokens), ("valid", tokens // 10), ("test", tokens // 10)):
        text = rng.choice(words, count, p=often / often.sum())
        # Half of the words follow from those before them.
        text[1::2] = (text[::2] * 7 + 3) % words
        lines = (" ".join(f"w{word}" for word in text[at : at + 20]) for at in range(0, count, 20))
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def tagged_sentences(folder: Path, *, num: int = 8000, num_val: int = 1000, num_test: int = 1000) -> None:
    """{train, val, test}/{sentences, labels}.txt with a tag for each word, and what CS230's build_vocab.py adds."""
    kinds = ["geo", "gpe", "per", "org", "tim", "art", "nat", "eve"]
    tags = ["O", *(f"{where}-{kind}" for kind in kinds for where in "BI")]
    seen: dict[str, None] = {}
    for split, count in (("train", num), ("val", num_val), ("test", num_test)):
        lines = [[*line.rstrip(".").split(), "."] for line in sentences(count, seed=30 + len(split))]
        # Two of them in a row have the 22 words of a sentence in a newspaper.
        lines = [first[:-1] + second for first, second in zip(lines, lines[1:] + lines[:1], strict=True)]
        seen.update(dict.fromkeys(word for line in lines for word in line))
        labels = [[tags[len(word) % len(tags) if len(word) > 5 else 0] for word in line] for line in lines]
        (folder / split).mkdir()
        for name, rows in (("sentences", lines), ("labels", labels)):
            (folder / split / f"{name}.txt").write_text("\n".join(map(" ".join, rows)) + "\n", encoding="utf-8")
    words = [*seen, "<pad>", "UNK"]
    (folder / "words.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (folder / "tags.txt").write_text("\n".join(tags) + "\n", encoding="utf-8")
    content = {
        "train_size": num,
        "dev_size": num_val,
        "test_size": num_test,
        "vocab_size": len(words),
        "number_of_tags": len(tags),
        "pad_word": "<pad>",
        "pad_tag": "O",
        "unk_word": "UNK",
    }
    (folder / "dataset_params.json").write_text(json.dumps(content, indent=4), encoding="utf-8")
