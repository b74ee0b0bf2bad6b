"""What training scripts do to files that were there before: a script that does all of it, each in a folder of its own.

Called `python harms.py FOLDER [NAME ...]`, it goes through the harms, prints what became of each, and trains. Each harm sees to
it that the script sees what it has done. `plant` makes the files.
"""

import csv
import glob
import gzip
import json
import logging
import multiprocessing
import os
import pathlib
import pickle
import shelve
import shutil
import sqlite3
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

LONG_AGO = 1_600_000_000
OTHERS_PROGRAMS = {"rm_by_subprocess", "mv_by_shell", "relative_to_a_descriptor"}  # without overlay they are refused


def plant(folder):
    """Files as an earlier training has left them."""
    for path in ("ckpt", "out/deep/er", "empty"):
        (folder / path).mkdir(parents=True)
    for number in (1, 2, 3):
        torch.save({"weights": torch.full((50,), float(number))}, folder / f"ckpt/epoch_{number:03d}.pt")
    torch.save(torch.ones(3), folder / "best.pt")
    (folder / "log.txt").write_text("an old log\n")
    (folder / "out/result.txt").write_text("an old result\n")
    (folder / "out/deep/er/note.txt").write_text("deep\n")
    np.save(folder / "array.npy", np.arange(1000.0))
    with sqlite3.connect(folder / "data.db") as base:
        base.execute("create table runs (loss real)")
        base.executemany("insert into runs values (?)", [(1.0,), (2.0,)])
    base.close()
    os.symlink("ckpt/epoch_003.pt", folder / "latest.pt")
    os.link(folder / "log.txt", folder / "same_log.txt")
    os.chmod(folder / "out/result.txt", 0o640)
    os.chmod(folder / "empty", 0o750)
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, (LONG_AGO, LONG_AGO), follow_symlinks=False)
    os.utime(folder, (LONG_AGO, LONG_AGO))


def read(path):
    with open(path) as file:
        return file.read()


# ------------------------------------------------------------------------------------------------------- the harms


def keep_the_last_three():
    torch.save({"weights": torch.ones(2)}, "ckpt/epoch_004.pt")
    os.remove(sorted(glob.glob("ckpt/*.pt"))[0])
    assert sorted(os.listdir("ckpt")) == ["epoch_002.pt", "epoch_003.pt", "epoch_004.pt"]
    assert torch.load("ckpt/epoch_004.pt")["weights"].sum() == 2


def keep_only_the_best():
    for path in glob.glob("ckpt/*.pt"):
        os.unlink(path)
    torch.save(torch.zeros(1), "ckpt/best.pt")
    assert os.listdir("ckpt") == ["best.pt"]


def remove_the_folder_first():
    shutil.rmtree("out")
    assert not os.path.exists("out") and not os.path.exists("out/result.txt")
    os.makedirs("out/new")
    with open("out/new/result.txt", "w") as file:
        file.write("new")
    assert os.listdir("out") == ["new"] and read("out/new/result.txt") == "new"


def replace_by_a_finished_file():
    torch.save(torch.zeros(3), "best.pt.tmp")
    os.replace("best.pt.tmp", "best.pt")
    assert torch.equal(torch.load("best.pt"), torch.zeros(3)) and not os.path.exists("best.pt.tmp")


def rename_a_file():
    os.rename("best.pt", "best_of_yesterday.pt")
    assert torch.equal(torch.load("best_of_yesterday.pt"), torch.ones(3)) and not os.path.exists("best.pt")


def rename_a_folder():
    os.rename("ckpt", "ckpt_old")
    os.mkdir("ckpt")
    assert os.listdir("ckpt") == [] and len(os.listdir("ckpt_old")) == 3
    assert torch.load("ckpt_old/epoch_002.pt")["weights"][0] == 2


def begin_the_log_anew():
    with open("log.txt", "w") as file:
        file.write("new\n")
    assert read("log.txt") == "new\n"


def add_to_the_log():
    with open("log.txt", "a") as file:
        file.write("more\n")
    assert read("log.txt") == "an old log\nmore\n"


def log_by_logging():
    handler = logging.FileHandler("log.txt", mode="w")
    handler.emit(logging.makeLogRecord({"msg": "epoch 1"}))
    handler.close()
    assert read("log.txt") == "epoch 1\n"


def everything_by_pathlib():
    pathlib.Path("out/result.txt").write_text("new")
    pathlib.Path("best.pt").unlink()
    pathlib.Path("log.txt").rename("log.1.txt")
    pathlib.Path("empty").rmdir()
    pathlib.Path("touched").touch()
    pathlib.Path("a/b/c").mkdir(parents=True)
    assert pathlib.Path("out/result.txt").read_text() == "new" and not pathlib.Path("best.pt").exists()
    assert sorted(path.name for path in pathlib.Path().iterdir() if path.is_dir()) == ["a", "ckpt", "out"]
    assert pathlib.Path("touched").stat().st_size == 0 and pathlib.Path("log.1.txt").read_text() == "an old log\n"


def write_into_a_database():
    base = sqlite3.connect("data.db")
    base.execute("insert into runs values (3)")
    base.commit()
    assert base.execute("select sum(loss) from runs").fetchone() == (6.0,)
    base.execute("drop table runs")
    base.commit()
    base.close()


def write_into_an_hdf5_file():
    import h5py

    with h5py.File("table.h5", "w") as table:
        table["x"] = np.arange(4)
    with h5py.File("table.h5", "r+") as table:
        table["x"][0] = 9
    with h5py.File("table.h5") as table:
        assert table["x"][0] == 9


def save_an_array():
    np.save("array.npy", np.zeros(3))
    np.savez("arrays.npz", a=np.ones(2))
    assert np.load("array.npy").shape == (3,) and np.load("arrays.npz")["a"].sum() == 2


def change_a_mapped_array():
    mapped = np.load("array.npy", mmap_mode="r+")
    mapped[0] = 42
    mapped.flush()
    assert np.load("array.npy")[0] == 42


def rm_by_subprocess():
    subprocess.run(["rm", "-rf", "ckpt", "best.pt"], check=True, stderr=subprocess.DEVNULL)
    assert not os.path.exists("ckpt")


def mv_by_shell():
    assert os.system("mv log.txt log.old && echo new > log.txt 2> /dev/null") == 0
    assert read("log.txt") == "new\n" and read("log.old") == "an old log\n"


def save_over_a_checkpoint():
    with open("best.pt", "wb") as file:
        torch.save(torch.zeros(7), file)
    assert torch.load(pathlib.Path("best.pt")).shape == (7,)
    torch.save(obj=torch.zeros(8), f=pathlib.Path("best.pt"))
    assert torch.load(f="best.pt").shape == (8,) and os.path.getsize("best.pt") > 100


def save_a_scripted_model():
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 1)), "best.pt")
    assert torch.jit.load("best.pt")(torch.zeros(1, 2)).shape == (1, 1)


def save_safetensors():
    from safetensors.torch import load_file, save_file

    save_file({"w": torch.ones(2)}, "best.pt")
    assert load_file("best.pt")["w"].sum() == 2


def dump_objects():
    with open("state.pkl", "wb") as file:
        pickle.dump({"epoch": 1}, file)
    with open("out/result.txt", "w") as file:
        json.dump({"loss": 1}, file)
    with open("state.pkl", "rb") as file:
        assert pickle.load(file) == {"epoch": 1}
    assert json.loads(read("out/result.txt")) == {"loss": 1}


def cut_files_short():
    os.truncate("log.txt", 2)
    with open("out/result.txt", "r+") as file:
        file.truncate(3)
    assert read("log.txt") == "an" and read("out/result.txt") == "an "


def change_modes_and_times():
    os.chmod("out/result.txt", 0o600)
    os.chmod("empty", 0o700)
    os.utime("best.pt", (1, 1))
    assert stat.S_IMODE(os.stat("out/result.txt").st_mode) == 0o600 and os.path.getmtime("best.pt") == 1


def switch_a_link():
    os.unlink("latest.pt")
    os.symlink("ckpt/epoch_001.pt", "latest.pt")
    assert os.readlink("latest.pt") == "ckpt/epoch_001.pt"
    os.symlink("best.pt", "latest.tmp")
    os.replace("latest.tmp", "latest.pt")
    assert os.readlink("latest.pt") == "best.pt"


def write_through_a_link():
    torch.save(torch.zeros(9), "latest.pt")
    assert torch.load("ckpt/epoch_003.pt").shape == (9,) and torch.load("latest.pt").shape == (9,)


def write_below_a_new_link():
    os.symlink(os.path.abspath("out"), "current")
    with open("current/result.txt", "w") as file:
        file.write("new")
    with open("current/deep/log.txt", "w") as file:
        file.write("deep")
    assert read("current/result.txt") == read("out/result.txt") == "new"
    assert "log.txt" in os.listdir("out/deep") and read("current/../log.txt") == "an old log\n"


def change_what_is_below_a_link():
    os.symlink("out", "before")
    os.rename("before", "current")
    os.rename("current/result.txt", "current/result.old")
    os.remove("current/deep/er/note.txt")
    os.mkdir("current/fresh")
    os.chmod("current/result.old", 0o600)
    assert os.path.isdir("out/fresh") and not os.path.exists("out/deep/er/note.txt")
    assert sorted(os.listdir("current")) == sorted(os.listdir("out")) == ["deep", "fresh", "result.old"]
    shutil.rmtree("current/deep")
    assert sorted(pathlib.Path("out").iterdir()) == [pathlib.Path("out/fresh"), pathlib.Path("out/result.old")]


def work_below_a_link_in_the_place_of_a_folder():
    os.rename("out", "out_old")
    os.symlink("ckpt", "out")
    os.chdir("out")
    os.remove("epoch_001.pt")
    assert sorted(os.listdir()) == ["epoch_002.pt", "epoch_003.pt"]
    os.chdir("..")
    assert os.path.exists("out_old/result.txt") and not os.path.exists("ckpt/epoch_001.pt")


def links_to_each_other():
    os.symlink(os.path.abspath("there"), "here")
    os.symlink(os.path.abspath("here"), "there")
    assert not os.path.exists("here") and os.path.islink("there")
    for name in ("here", "here/file"):
        try:
            open(name, "w").close()
        except OSError:
            continue
        raise AssertionError("written somewhere")


def find_what_was_written():
    for name in ("a.new", "out/b.new"):
        with open(name, "w") as file:
            file.write(name)
    with os.scandir(".") as entries:
        found = {entry.path: entry.stat().st_size for entry in entries if entry.is_file()}
    assert found["./a.new"] == 5 and "./log.txt" in found
    assert sorted(map(str, pathlib.Path().rglob("*.new"))) == sorted(glob.glob("**/*.new", recursive=True))
    assert sorted(glob.glob("**/*.new", recursive=True)) == ["a.new", "out/b.new"]


def link_hard():
    os.link("best.pt", "best_too.pt")
    assert torch.equal(torch.load("best_too.pt"), torch.ones(3))


def move_and_copy_by_shutil():
    shutil.copy2("best.pt", "ckpt/best.pt")
    shutil.copy("log.txt", "out")
    shutil.copyfile("log.txt", "out/result.txt")
    shutil.move("ckpt/epoch_001.pt", "epoch_001.pt")
    shutil.copytree("out", "out2")
    shutil.move("out", "out_old")
    assert read("out2/deep/er/note.txt") == "deep\n" and read("out_old/result.txt") == "an old log\n"
    assert sorted(os.listdir("ckpt")) == ["best.pt", "epoch_002.pt", "epoch_003.pt"] and not os.path.exists("out")


class Caching(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        os.makedirs("cache", exist_ok=True)
        with open(f"cache/{index}.txt", "w") as file:
            file.write(str(index))
        if index == 0:
            os.remove("best.pt")
        return torch.zeros(1)


def write_in_workers():
    assert len(list(DataLoader(Caching(), num_workers=2))) == 8
    assert len(os.listdir("cache")) == 8 and not os.path.exists("best.pt")


def spoil():
    with open("log.txt", "w") as file:
        file.write("spawned")
    os.remove("best.pt")


def write_in_a_spawned_process():
    child = multiprocessing.get_context("spawn").Process(target=spoil)
    child.start()
    child.join()
    assert child.exitcode == 0 and read("log.txt") == "spawned" and not os.path.exists("best.pt")


def write_in_a_forked_process():
    pid = os.fork()
    if not pid:
        spoil()
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert read("log.txt") == "spawned" and not os.path.exists("best.pt")


def pack_and_unpack():
    with zipfile.ZipFile("all.zip", "w") as packed:
        packed.write("log.txt")
    with zipfile.ZipFile("all.zip") as packed:
        packed.extractall("unzipped")
    with tarfile.open("all.tar.gz", "w:gz") as packed:
        packed.add("ckpt")
    with gzip.open("log.txt", "wt") as file:
        file.write("zipped")
    assert read("unzipped/log.txt") == "an old log\n" and os.path.getsize("all.tar.gz") > 100


def leave_temporary_files():
    with tempfile.NamedTemporaryFile(dir="out", delete=False) as file:
        file.write(b"x")
    folder = tempfile.mkdtemp(dir=".")
    assert os.path.basename(file.name) in os.listdir("out") and os.path.isdir(folder)


def walk_and_remove_everything():
    for folder, folders, files in os.walk(".", topdown=False):
        for name in files:
            os.remove(os.path.join(folder, name))
        for name in folders:
            os.rmdir(os.path.join(folder, name))
    assert os.listdir(".") == []


def scan_and_remove():
    with os.scandir("ckpt") as entries:
        for entry in entries:
            if entry.is_file() and entry.stat().st_size:
                os.remove(entry.path)
    os.removedirs("out/deep/er") if not glob.glob("out/deep/er/*") else os.remove("out/deep/er/note.txt")
    assert os.listdir("ckpt") == [] and os.listdir("out/deep/er") == []


def write_a_table():
    with open("out/result.txt", "w", newline="") as file:
        csv.writer(file).writerow(["epoch", "loss"])
    assert read("out/result.txt").strip() == "epoch,loss"


def write_by_descriptors():
    descriptor = os.open("log.txt", os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, b"low")
    os.close(descriptor)
    os.close(os.open("new.lock", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    assert read("log.txt") == "low" and os.path.exists("new.lock")
    try:
        os.open("new.lock", os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    raise AssertionError("made twice")


def keep_a_shelf():
    with shelve.open("shelf") as shelf:
        shelf["epoch"] = 3
    with shelve.open("shelf") as shelf:
        assert shelf["epoch"] == 3


def save_pictures():
    from PIL import Image

    Image.new("RGB", (4, 4)).save("out/picture.png")
    assert Image.open("out/picture.png").size == (4, 4)


def work_in_another_folder():
    os.chdir("out")
    os.remove("result.txt")
    with open("../log.txt", "w") as file:
        file.write("from below")
    os.chdir("..")
    assert not os.path.exists("out/result.txt") and read("log.txt") == "from below"


def relative_to_a_descriptor():
    folder = os.open(".", os.O_RDONLY)
    os.unlink("best.pt", dir_fd=folder)
    os.rename("log.txt", "log.2", src_dir_fd=folder, dst_dir_fd=folder)
    os.close(folder)
    assert not os.path.exists("best.pt") and os.path.exists("log.2")


def log_to_tensorboard():
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("out/board") as writer:
        writer.add_scalar("loss", 1.0, 0)
    assert len(os.listdir("out/board")) == 1


def write_into_lmdb():
    import lmdb

    with lmdb.open("base.lmdb", map_size=1 << 20) as base, base.begin(write=True) as put:
        put.put(b"key", b"value")
    with lmdb.open("base.lmdb", readonly=True) as base, base.begin() as got:
        assert got.get(b"key") == b"value"


def empty_and_fill_a_folder_again():
    for path in glob.glob("ckpt/*"):
        os.remove(path)
    os.rmdir("ckpt")
    os.mkdir("ckpt")
    assert os.listdir("ckpt") == []
    with open("ckpt/epoch_001.pt", "w") as file:
        file.write("new")
    assert os.listdir("ckpt") == ["epoch_001.pt"] and read("ckpt/epoch_001.pt") == "new"


HARMS = {
    name: harm
    for name, harm in list(globals().items())
    if callable(harm)
    and getattr(harm, "__module__", "") == __name__
    and name not in ("plant", "read", "Caching", "spoil")
}


def main():
    top, names = sys.argv[1], sys.argv[2:] or HARMS
    for name in names:
        os.chdir(os.path.join(top, name))
        try:
            HARMS[name]()
            answer = "done"
        except ModuleNotFoundError as error:
            answer = f"skipped: {error}"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps([name, answer]), flush=True)
    os.chdir(top)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        optimizer.zero_grad()
        model(torch.randn(64, 8)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
