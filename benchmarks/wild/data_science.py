"""Data of tables, ratings, graphs, signals and physics, in the formats that public scripts read."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np


def census(folder: Path, *, num: int = 20000) -> None:
    """The adult data of UCI as it is downloaded: census-income.csv, without a header, of which readers take the first row."""
    rng = np.random.default_rng(20)
    words = {
        1: ["Private", "State-gov", "Self-emp-not-inc", "Local-gov", "Federal-gov", "?"],
        3: ["HS-grad", "Some-college", "Bachelors", "Masters", "Assoc-voc", "11th", "Doctorate", "10th"],
        5: ["Married-civ-spouse", "Never-married", "Divorced", "Separated", "Widowed"],
        6: ["Prof-specialty", "Craft-repair", "Exec-managerial", "Adm-clerical", "Sales", "Other-service", "?"],
        7: ["Husband", "Not-in-family", "Own-child", "Unmarried", "Wife"],
        8: ["White", "Black", "Asian-Pac-Islander", "Other"],
        9: ["Male", "Female"],
        13: ["United-States", "Mexico", "Philippines", "Germany", "Canada", "?"],
    }
    first = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K"
    age = rng.integers(17, 90, num)
    weight = rng.integers(12000, 1000000, num)
    years = rng.integers(1, 17, num)
    gain = np.where(rng.random(num) < 0.1, rng.integers(100, 20000, num), 0)
    loss = np.where(rng.random(num) < 0.05, rng.integers(150, 2500, num), 0)
    hours = rng.integers(10, 80, num)
    score = 0.03 * age + 0.3 * years + 0.02 * hours + gain / 5000 + rng.normal(0, 1, num)
    rich = score > np.quantile(score, 0.76)
    numbers = {0: age, 2: weight, 4: years, 10: gain, 11: loss, 12: hours}
    columns = [numbers[n].astype(str) if n in numbers else rng.choice(words[n], num) for n in range(14)]
    columns.append(np.where(rich, ">50K", "<=50K"))
    lines = [first, *(", ".join(row) for row in zip(*columns))]
    (folder / "census-income.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def california(folder: Path, *, num: int = 20640) -> None:
    """The houses of California as scikit-learn caches them, in its folder of data."""
    import joblib

    rng = np.random.default_rng(21)
    income, age = rng.gamma(4, 1, num), rng.integers(1, 53, num)
    households = rng.integers(20, 2000, num)
    rooms, bedrooms = households * rng.uniform(3, 8, num), households * rng.uniform(0.8, 1.5, num)
    people = households * rng.uniform(1.5, 4, num)
    latitude, longitude = rng.uniform(32, 42, num), rng.uniform(-124, -114, num)
    value = 40000 * income + 1000 * age + 20000 * np.sin(latitude) + rng.normal(0, 30000, num)
    columns = (value.clip(15000, 500000), income, age, rooms, bedrooms, people, households, latitude, longitude)
    joblib.dump(np.stack(columns, axis=1), folder / "cal_housing_py3.pkz", compress=6)


def implicit_ratings(folder: Path, *, num_users: int = 3000, num_items: int = 3706, num: int = 60000) -> None:
    """ml-1m.{train.rating, test.rating, test.negative}, as the authors of neural collaborative filtering share them."""
    rng = np.random.default_rng(22)
    users = np.concatenate([np.arange(num_users), rng.integers(0, num_users, num - num_users)])
    items = np.minimum(rng.zipf(1.3, num) - 1 + users % 50, num_items - 1)
    items[0] = num_items - 1
    pairs = np.unique(np.stack([users, items], axis=1), axis=0)
    train = "".join(f"{user}\t{item}\t{1 + item % 5}\t978300760\n" for user, item in pairs)
    (folder / "ml-1m.train.rating").write_text(train, encoding="utf-8")
    wanted = rng.integers(0, num_items, num_users)
    test = "".join(f"{user}\t{item}\t4\t978300760\n" for user, item in enumerate(wanted))
    (folder / "ml-1m.test.rating").write_text(test, encoding="utf-8")
    others = rng.integers(0, num_items, (num_users, 99))
    lines = ("\t".join([f"({user},{wanted[user]})", *map(str, row)]) + "\n" for user, row in enumerate(others))
    (folder / "ml-1m.test.negative").write_text("".join(lines), encoding="utf-8")


def criteo(folder: Path, *, name: str = "train.txt", num: int = 60000) -> None:
    """Clicks as Criteo shares them: a label, 13 counts and 26 hashed categories, separated by tabs, some missing."""
    rng = np.random.default_rng(23)
    counts = rng.geometric(0.02, (num, 13)) - 1
    sizes = rng.integers(10, 5000, 26)
    kinds = np.minimum(rng.zipf(1.4, (num, 26)), sizes) - 1
    taste = rng.normal(0, 0.7, (26, int(sizes.max())))
    score = sum(taste[n][kinds[:, n]] for n in range(26)) + 0.005 * counts.sum(1) + rng.normal(0, 1, num)
    labels = (score > np.quantile(score, 0.75)).astype(int)
    codes = [[f"{(n * 7919 + k * 104729) % 2**32:08x}" for k in range(size)] for n, size in enumerate(sizes)]
    missing = rng.random((num, 39)) < 0.08
    with (folder / name).open("w", encoding="utf-8") as file:
        for label, numbers, categories, gone in zip(labels, counts.tolist(), kinds.tolist(), missing.tolist()):
            values = [str(v) for v in numbers] + [codes[n][k] for n, k in enumerate(categories)]
            file.write("\t".join([str(label), *("" if g else v for v, g in zip(values, gone))]) + "\n")


def cora(folder: Path) -> None:
    """cora.content and cora.cites: 2708 papers of 7 kinds, 1433 words, 5429 citations."""
    rng = np.random.default_rng(24)
    num, words, links = 2708, 1433, 5429
    kinds = ["Case_Based", "Genetic_Algorithms", "Neural_Networks", "Probabilistic_Methods"]
    kinds += ["Reinforcement_Learning", "Rule_Learning", "Theory"]
    names = rng.permutation(np.arange(1, 1200000, 400))[:num]
    label = rng.integers(0, len(kinds), num)
    likely = rng.random((len(kinds), words)) * 0.025
    present = (rng.random((num, words)) < likely[label]).astype(int)
    present[np.arange(num), rng.integers(0, words, num)] = 1
    rows = (f"{names[n]}\t" + "\t".join(map(str, present[n])) + f"\t{kinds[label[n]]}\n" for n in range(num))
    (folder / "cora.content").write_text("".join(rows), encoding="utf-8")
    source = rng.integers(0, num, links)
    same = [rng.choice(np.flatnonzero(label == label[s])) for s in source]
    target = np.where(rng.random(links) < 0.8, same, rng.integers(0, num, links))
    text = "".join(f"{names[s]}\t{names[t]}\n" for s, t in zip(source, target) if s != t)
    (folder / "cora.cites").write_text(text, encoding="utf-8")


def graphs(folder: Path, *, name: str = "PROTEINS", num: int = 1113, nodes: int = 39, num_labels: int = 3) -> None:
    """Small graphs of two kinds in the text files of TUDataset."""
    rng = np.random.default_rng(25)
    edges: list[str] = []
    owner: list[str] = []
    labels: list[str] = []
    kinds: list[str] = []
    for number in range(num):
        kind = number % 2
        size = int(rng.integers(nodes // 4, 2 * nodes - nodes // 4))
        start = len(owner) + 1
        for node in range(1, size):
            others = {node - 1, *rng.integers(max(0, node - 3 - 6 * kind), node, 1).tolist()}
            edges += [f"{start + a}, {start + b}" for o in others for a, b in ((node, o), (o, node))]
        owner += [str(number + 1)] * size
        labels += [str(v) for v in rng.integers(0, num_labels, size)]
        kinds.append(str(kind + 1))
    for what, lines in (("A", edges), ("graph_indicator", owner), ("graph_labels", kinds), ("node_labels", labels)):
        (folder / f"{name}_{what}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def triples(
    folder: Path, *, entities: int = 14541, relations: int = 237, num: int = 40000, num_test: int = 300
) -> None:
    """{train, valid, test}.txt: head, relation and tail, separated by tabs, as in FB15k-237."""
    rng = np.random.default_rng(26)
    for part, count in (("train", num), ("valid", num_test), ("test", num_test)):
        head = rng.integers(0, entities, count)
        if part == "train":
            head[:entities] = np.arange(entities)
        relation = np.minimum(rng.zipf(1.5, count), relations) - 1
        tail = (head + 13 * relation + rng.integers(0, 5, count)) % entities
        rows = zip(head, relation, tail)
        text = "".join(f"/m/{h:06x}\t/people/person/r{r}\t/m/{t:06x}\n" for h, r, t in rows)
        (folder / f"{part}.txt").write_text(text, encoding="utf-8")


def elevators(folder: Path, *, num: int = 16599) -> None:
    """elevators.mat of UCI: 18 numbers and a target."""
    import scipy.io

    rng = np.random.default_rng(27)
    x = rng.normal(size=(num, 18))
    y = np.sin(x[:, 0]) + 0.3 * x[:, 1] * x[:, 2] + rng.normal(0, 0.1, num)
    scipy.io.savemat(folder / "elevators.mat", {"data": np.column_stack([x, y])})


def darcy(folder: Path, *, num: int = 1000, num_test: int = 100, size: int = 85) -> None:
    """piececonst_*.mat: coefficients of two values (coeff) and smooth solutions (sol) of Darcy flow on a grid."""
    import scipy.io
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(28)
    for name, count in (("smooth1", num), ("smooth2", num_test)):
        noise = gaussian_filter(rng.normal(size=(count, size, size)), (0, 6, 6))
        coefficients = np.where(noise > 0, 12, 3).astype(np.uint8)
        solutions = gaussian_filter(1.0 / coefficients, (0, 12, 12), mode="constant").astype(np.float32) / 20
        path = folder / f"piececonst_r421_N1024_{name}.mat"
        scipy.io.savemat(path, {"coeff": coefficients, "sol": solutions})


def omniglot_array(folder: Path, *, characters: int = 1240, size: int = 28) -> None:
    """omniglot.npy: 20 drawings of each character, one channel, between 0 and 1."""
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(29)
    strokes = gaussian_filter(rng.normal(size=(characters, 1, size, size)), (0, 0, 2, 2))
    wobble = gaussian_filter(rng.normal(size=(characters, 20, size, size)).astype(np.float32), (0, 0, 2, 2))
    np.save(folder / "omniglot.npy", (strokes + 0.5 * wobble < 0.05)[:, :, None].astype(np.float32))


def activities(folder: Path, *, num: int = 3500, channels: int = 9, length: int = 128, classes: int = 6) -> None:
    """{train, val, test}.pt: samples and labels of recorded movements, float64, as made of UCI HAR."""
    import torch

    rng = np.random.default_rng(30)
    time = np.linspace(0, 2.56, length)
    for part, count in (("train", num), ("val", num // 5), ("test", num // 5)):
        labels = rng.integers(0, classes, count)
        phase = rng.uniform(0, 6, (count, channels, 1))
        samples = np.sin(2 * np.pi * (1 + labels)[:, None, None] * time + phase) + rng.normal(
            0, 0.3, (count, channels, length)
        )
        content = {"samples": torch.from_numpy(samples), "labels": torch.from_numpy(labels.astype(np.float64))}
        torch.save(content, folder / f"{part}.pt")


def heartbeats(folder: Path, *, num: int = 200, length: int = 9000) -> None:
    """challenge2017.pkl: electrocardiograms of 30 s at 300 Hz, normal (N) or with atrial fibrillation (A)."""
    rng = np.random.default_rng(31)
    labels = np.where(rng.random(num) < 0.2, "A", "N")
    data = np.zeros((num, length))
    beat = np.concatenate([np.hanning(20) * 0.2, np.zeros(10), np.hanning(12), np.zeros(20), np.hanning(50) * 0.3])
    for row, label in zip(data, labels):
        position = 0
        while position + len(beat) < length:
            row[position : position + len(beat)] += beat
            position += int(rng.integers(130, 400) if label == "A" else rng.integers(240, 260))
    data = (1000 * (data + rng.normal(0, 0.05, data.shape))).astype(np.int16)
    whole = np.empty(num, dtype=object)
    whole[:] = [row.astype(np.float64) for row in data]
    with (folder / "challenge2017.pkl").open("wb") as file:
        pickle.dump({"data": whole, "label": labels}, file)


def proteins(folder: Path, *, name: str = "proteins.fasta", num: int = 400, length: int = 100) -> None:
    """Relatives of one protein with changed, lost and added residues, in FASTA."""
    rng = np.random.default_rng(32)
    letters = np.array(list("RHKDESTNQCGPAVILMFYW"))
    ancestor = rng.choice(letters, length)
    lines: list[str] = []
    for number in range(num):
        changed = np.where(rng.random(length) < 0.25, rng.choice(letters, length), ancestor)
        kept = changed[rng.random(length) > 0.04]
        more = "".join(rng.choice(letters, int(rng.integers(0, 4))))
        lines += [f">relative{number}", "".join(kept) + more]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
