"""Data of the scripts in manifest/language.toml: text, tokens, hub folders, sounds.

Each maker writes into an empty folder and depends on its arguments alone.
"""

from __future__ import annotations

import csv
import gzip
import json
import pickle
import sys
import types
import wave
from collections import Counter
from pathlib import Path

import data_common
import numpy as np


def _play(num: int, *, seed: int = 20) -> str:
    """Lines as in tiny Shakespeare: a speaker, then what is said, with capitals and punctuation."""
    lines = data_common.sentences(num, seed=seed)
    speakers = [
        "First Citizen",
        "Menenius",
        "King Henry",
        "Juliet",
        "Duke of York",
        "Queen",
        "Brutus",
        "Viola",
        "Puck",
    ]
    ends = [".", "!", "?", ";", ":", ".", ".", "'s jest.", " & Zeus."]
    # The letters that scripts take for granted: minGPT starts its samples with this line.
    spoken = ["O God, O God! why, Xerxes? Quick, $3 of justice: 'tis MADNESS; jovial wizards vex BCHLPRTUVWYZ."]
    for number, line in enumerate(lines):
        if number % 4 == 0:
            spoken.append(f"\n{speakers[number // 4 % len(speakers)]}:")
        words = line[:-1].split()
        words.insert(len(words) // 2, "and,"[: 3 + number % 2])
        spoken.append(" ".join(words).capitalize() + ends[number % len(ends)])
    return "\n".join(spoken) + "\n"


def play(folder: Path, *, name: str = "input.txt", num: int = 16000) -> None:
    """One text file like tiny Shakespeare, of about a megabyte."""
    (folder / name).write_text(_play(num), encoding="utf-8")


def characters(folder: Path, *, num: int = 16000) -> None:
    """nanoGPT's train.bin, val.bin (uint16 characters) and meta.pkl."""
    text = _play(num)
    letters = sorted(set(text))
    index = {letter: number for number, letter in enumerate(letters)}
    ids = np.array([index[letter] for letter in text], dtype=np.uint16)
    cut = int(len(ids) * 0.9)
    ids[:cut].tofile(folder / "train.bin")
    ids[cut:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": index}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def _tokens(num: int, vocabulary: int, seed: int) -> np.ndarray:
    """Tokens with the frequencies of words, where every other one follows from the one before."""
    rng = np.random.default_rng(seed)
    ids = np.minimum(rng.zipf(1.3, num), vocabulary) - 1
    ids[1::2] = (ids[::2][: len(ids[1::2])] * 7 + 3) % vocabulary
    return ids.astype(np.uint16)


def token_shards(
    folder: Path,
    *,
    shards: int = 4,
    num: int = 400000,
    vocabulary: int = 4096,
    name: str = "data{:02d}.bin",
    magic: int = 0,
) -> None:
    """Files of uint16 tokens; with `magic`, behind the header of 256 words that llm.c writes."""
    for shard in range(shards):
        ids = _tokens(num, vocabulary, 30 + shard)
        header = np.zeros(256, np.int32)
        header[:3] = magic, 1, len(ids)
        path = folder / name.format(shard)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((header.tobytes() if magic else b"") + ids.tobytes())


def enwik8(folder: Path, *, num: int = 60000, megabytes: int = 95) -> None:
    """enwik8.gz: so many megabytes of text, the same sentences in several orders."""
    lines = data_common.sentences(num, seed=21)
    rng = np.random.default_rng(21)
    left = megabytes * 1000000
    with gzip.open(folder / "enwik8.gz", "wb", compresslevel=1) as file:
        while left > 0:
            text = "\n".join(lines[at] for at in rng.permutation(len(lines))).encode()[:left]
            file.write(text)
            left -= len(text)


def penn(folder: Path, *, words: int = 10000, num: int = 9000) -> None:
    """train.txt, valid.txt and test.txt with exactly so many different words, the end of a line among them."""
    rng = np.random.default_rng(22)
    known = ["the", "meaning", "of"] + [f"w{number}" for number in range(words - 4)]
    sizes = {"train.txt": num, "valid.txt": num // 10, "test.txt": num // 10}
    for name, count in sizes.items():
        lines = [known[at : at + 20] for at in range(0, len(known), 20)] if name == "train.txt" else []
        ranks = np.minimum(rng.zipf(1.3, (count, 20)), len(known)) - 1
        ranks[:, 1::2] = (ranks[:, ::2] * 7 + 3) % len(known)
        lines += [[known[rank] for rank in row[: 8 + row[0] % 13]] for row in ranks]
        (folder / name).write_text("".join(" ".join(line) + " \n" for line in lines), encoding="utf-8")


def sentence_pairs(
    folder: Path, *, corpus: str = "corpus.small", vocab: str = "vocab.small", num: int = 6000
) -> None:
    """BERT-pytorch's corpus, two sentences a line, and the vocabulary that its `bert-vocab` pickles."""
    first, second = data_common.sentences(num, seed=23), data_common.sentences(num, seed=24)
    lines = [f"{a[:-1]}\t{b[:-1]}" for a, b in zip(first, second)]
    (folder / corpus).write_text("\n".join(lines) + "\n", encoding="utf-8")
    counter = Counter(word for line in lines for word in line.split())
    special = ["<pad>", "<unk>", "<eos>", "<sos>", "<mask>"]
    itos = special + sorted(counter, key=lambda word: (-counter[word], word))
    # The pickle names a class of the script's package: a stand-in of that name is enough to write it.
    module = types.ModuleType("bert_pytorch.dataset.vocab")
    kind = type("WordVocab", (), {"__module__": module.__name__})
    module.WordVocab = kind  # type: ignore[attr-defined]
    vocabulary = kind()
    vocabulary.__dict__.update(
        freqs=counter, itos=itos, stoi={word: at for at, word in enumerate(itos)}, vectors=None
    )
    vocabulary.__dict__.update(pad_index=0, unk_index=1, eos_index=2, sos_index=3, mask_index=4)
    names = ["bert_pytorch", "bert_pytorch.dataset", module.__name__]
    for name in names:
        sys.modules[name] = module
    try:
        (folder / vocab).write_bytes(pickle.dumps(vocabulary))
    finally:
        for name in names:
            del sys.modules[name]


def translations(folder: Path, *, config: str = "en-it", num: int = 4000) -> None:
    """A folder that `load_dataset` reads as a data set of the hub: pairs of sentences in two languages."""
    source, target = config.split("-")
    lines = zip(data_common.sentences(num, seed=25), data_common.sentences(num, seed=26))
    rows = [{"id": str(at), "translation": {source: a, target: b}} for at, (a, b) in enumerate(lines)]
    (folder / config).mkdir()
    (folder / config / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    _card(folder, config, {"train": f"{config}/train.jsonl"})


def _card(folder: Path, config: str, files: dict[str, str]) -> None:
    listed = "".join(f"  - split: {split}\n    path: {path}\n" for split, path in files.items())
    text = f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{listed}---\n"
    (folder / "README.md").write_text(text, encoding="utf-8")


def mrpc(folder: Path, *, num: int = 2000) -> None:
    """The folder nyu-mll/glue as `load_dataset` reads it, with MRPC alone; and glue/glue.py, its metric."""
    data = folder / "nyu-mll" / "glue"
    (data / "mrpc").mkdir(parents=True)
    rng = np.random.default_rng(27)
    lines = data_common.sentences(4 * num, seed=27)
    files = {}
    for split, count in (("train", num), ("validation", num // 10), ("test", num // 10)):
        files[split] = f"mrpc/{split}.csv"
        with (data / files[split]).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["sentence1", "sentence2", "label", "idx"])
            for number in range(count):
                one, other = (" ".join(lines[at] for at in rng.integers(0, len(lines), 2)) for _ in range(2))
                label = int(rng.integers(0, 2))
                words = one.split()
                writer.writerow([one, " ".join(words[2:] + words[:2]) if label else other, label, number])
    _card(data, "mrpc", files)
    (folder / "glue").mkdir()
    (folder / "glue" / "glue.py").write_text(_METRIC, encoding="utf-8")


_METRIC = '''"""Accuracy and F1 of MRPC."""

import datasets
import evaluate


class Glue(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        pairs = list(zip(predictions, references))
        hits = sum(1 for guess, truth in pairs if guess == truth == 1)
        wrong = sum(1 for guess, truth in pairs if guess != truth)
        return {"accuracy": 1 - wrong / len(pairs), "f1": 2 * hits / max(1, 2 * hits + wrong)}
'''


def hub_model(
    folder: Path, *, config: dict[str, object], style: str = "bert", weights: bool = False, size: int = 4000
) -> None:
    """A model's folder as from the hub: a configuration and a tokenizer; with `weights`, a file that holds one of them.

    The other weights are new, as for a model that has not been trained yet.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    lines = data_common.sentences(8000, seed=28)
    if style == "bert":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer: object = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
        tokenizer.train_from_iterator(lines, trainer)
        pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special))
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(lines, trainer)
        names = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2), encoding="utf-8")
    if weights:
        from safetensors.numpy import save_file

        wide = int(config["hidden_size"])  # type: ignore[call-overload]
        name = "bert.pooler.dense.bias" if style == "bert" else "model.decoder.final_layer_norm.bias"
        save_file({name: np.zeros(wide, np.float32)}, folder / "model.safetensors", metadata={"format": "pt"})


def instructions(folder: Path, *, name: str = "alpaca_small.json", num: int = 2000) -> None:
    """Alpaca's JSON: an instruction, perhaps an input, and an output."""
    lines = data_common.sentences(4 * num, seed=29)
    rows = []
    for number in range(num):
        one, two, *rest = lines[4 * number : 4 * number + 4]
        rows.append(
            {"instruction": one, "input": two if number % 3 else "", "output": " ".join(rest[: 1 + number % 2])}
        )
    (folder / name).write_text(json.dumps(rows, indent=1), encoding="utf-8")


def pets(folder: Path, *, num: int = 400, breeds: int = 12, width: int = 400, height: int = 300) -> None:
    """BREED_NUMBER.jpg as in Oxford-IIIT Pet: cats have a capital, dogs have none."""
    names = ["Abyssinian", "beagle", "Bengal", "boxer", "Birman", "chihuahua", "Bombay", "havanese", "Persian", "pug"]
    names += ["Ragdoll", "samoyed"]
    data_common.image_folder(folder, num=num, num_classes=breeds, splits=["all"], width=width, height=height)
    for number, path in enumerate(sorted((folder / "all").rglob("*.jpg"))):
        path.rename(folder / f"{names[int(path.parent.name[5:])]}_{number + 1}.jpg")
    for left in sorted((folder / "all").rglob("*"), reverse=True):
        left.rmdir()
    (folder / "all").rmdir()


def mnist_npz(folder: Path, *, num: int = 6000, num_test: int = 1000) -> None:
    """Keras's mnist.npz."""
    data_common.mnist(folder, num=num, num_test=num_test)
    raw = folder / "MNIST" / "raw"
    made = {}
    for part, name in (("train", "train"), ("t10k", "test")):
        pixels = np.frombuffer((raw / f"{part}-images-idx3-ubyte").read_bytes(), np.uint8, offset=16)
        made[f"x_{name}"] = pixels.reshape(-1, 28, 28)
        made[f"y_{name}"] = np.frombuffer((raw / f"{part}-labels-idx1-ubyte").read_bytes(), np.uint8, offset=8)
    np.savez(folder / "mnist.npz", **made)
    for path in raw.iterdir():
        path.unlink()
    raw.rmdir()
    raw.parent.rmdir()


def speech_commands(folder: Path, *, num: int = 1200, rate: int = 16000) -> None:
    """train/WORD/*.wav and valid/WORD/*.wav of a second each, and train/_background_noise_ with a minute of noise."""
    words = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go", "bed", "cat"]
    for split, count in (("train", num), ("valid", num // 6)):
        (folder / split).mkdir()
        data_common.sounds(folder / split, num=count, rate=rate, classes=words)
    noise = np.random.default_rng(31).normal(0, 0.1, 60 * rate)
    (folder / "train" / "_background_noise_").mkdir()
    with wave.open(str(folder / "train" / "_background_noise_" / "white_noise.wav"), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((noise.clip(-1, 1) * 32767).astype("<i2").tobytes())


def spoken_letters(folder: Path, *, num: int = 1000, frames: int = 225, features: int = 13, longest: int = 6) -> None:
    """x.npy, cepstra as Wav2Letter stores them, and y.npy, the letters of the words."""
    words = [
        "right",
        "eight",
        "cat",
        "tree",
        "bed",
        "happy",
        "go",
        "dog",
        "no",
        "wow",
        "nine",
        "left",
        "stop",
        "sheila",
    ]
    rng = np.random.default_rng(32)
    letters = {letter: at for at, letter in enumerate(dict.fromkeys("".join(words)), 2)}
    shapes = rng.normal(size=(len(letters) + 2, features))
    x = rng.normal(0, 0.5, (num, frames, features))
    y = np.ones((num, longest), np.int64)
    for number in range(num):
        word = words[number % len(words)]
        for at, letter in enumerate(word):
            y[number, at] = letters[letter]
            x[number, 20 + 30 * at : 50 + 30 * at] += shapes[letters[letter]]
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)


def utterances(folder: Path, *, num: int = 200, mels: int = 80, shortest: int = 120, longest: int = 260) -> None:
    """WaveRNN's data: mel/ID.npy from 0 to 1, dataset.pkl with their lengths, and text_dict.pkl."""
    rng = np.random.default_rng(33)
    lines = data_common.sentences(num, seed=33)
    (folder / "mel").mkdir()
    listed, texts = [], {}
    for number, line in enumerate(lines):
        name = f"LJ001-{number:04d}"
        length = int(rng.integers(shortest, longest))
        curve = np.sin(np.linspace(0, 12, length))[None] * np.linspace(-1, 1, mels)[:, None]
        mel = (0.5 + 0.3 * curve + rng.normal(0, 0.05, (mels, length))).clip(0, 1)
        np.save(folder / "mel" / f"{name}.npy", mel.astype(np.float32))
        listed.append((name, length))
        texts[name] = line
    (folder / "dataset.pkl").write_bytes(pickle.dumps(listed))
    (folder / "text_dict.pkl").write_bytes(pickle.dumps(texts))
