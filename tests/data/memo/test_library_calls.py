"""Unusual calls run unchanged, and a hit repeats a library's side effects."""

import functools
import io
import os
import pickle
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from hasten.data.memo.memo import open_memo
from hasten.data.memo.table import memoizing

sys.path.append(str(Path(__file__).parent))  # for library_files.py

from library_files import (
    as_array,
    as_tensor,
    hits,
    outcome,
    read_hdf5,
    smooth,
    write_dicom,
    write_hdf5,
    write_jpeg,
    write_nifti,
    write_npy,
    write_npz,
    write_png,
    write_tensors,
    write_tiff,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:UserWarning")


@pytest.fixture(autouse=True)
def memo(monkeypatch):
    monkeypatch.setattr("hasten.data.memo.keys.QUIET_SECONDS", 0.0)
    made = open_memo(ram="16 MiB", disk=None)
    yield made
    made.close()


@pytest.mark.parametrize(
    "read",
    [
        lambda path: np.load(path, mmap_mode="r"),
        lambda path: np.load(path, "r"),
        lambda path: np.load(io.BytesIO(path.read_bytes())),
    ],
)
def test_numpy_leaves_memory_maps_and_open_files_alone(tmp_path, memo, read):
    path = tmp_path / "a.npy"
    write_npy(path, 3)
    time.sleep(0.005)
    with memoizing(memo):
        found = [read(path) for _ in range(2)]
        counts = memo.counts()
    assert {type(one) for one in found} == {type(read(path))}
    assert (counts.num_hits, counts.num_misses) == (0, 0)


def test_numpy_runs_pickles_each_time(tmp_path, memo):
    path = tmp_path / "a.npy"
    path.write_bytes(pickle.dumps(np.arange(4)))
    time.sleep(0.005)
    with memoizing(memo):
        for _ in range(2):
            assert np.load(path, allow_pickle=True).tolist() == [0, 1, 2, 3]
    assert memo.counts().tiers[0].num_fills == 0


SHARED = torch.arange(6)
NOT_KEPT = {
    "views of one storage": {"a": SHARED[:3], "b": SHARED[3:]},
    "the same tensor twice": [SHARED, SHARED],
    "the same list twice": (lambda one: [one, one])([SHARED.clone()]),
    "a part of a storage": SHARED[:2].clone().resize_(1),
    "a gradient": torch.ones(2, requires_grad=True),
    "a parameter": torch.nn.Parameter(torch.ones(2)),
    "a sparse tensor": torch.eye(2).to_sparse(),
}


@pytest.mark.parametrize("name", NOT_KEPT)
def test_torch_load_does_not_cache_shared_objects(tmp_path, memo, name):
    path = tmp_path / "a.pt"
    torch.save(NOT_KEPT[name], path)
    time.sleep(0.005)
    with memoizing(memo):
        for _ in range(2):
            torch.load(path)
    assert memo.counts().tiers[0].num_fills == 0


@pytest.mark.parametrize(
    "named",
    [{"weights_only": False}, {"mmap": True}, {"map_location": "meta"}, {"map_location": lambda storage, _: storage}],
)
def test_torch_load_runs_unchanged_with_unusual_arguments(tmp_path, memo, named):
    path = tmp_path / "a.pt"
    torch.save(torch.ones(3), path)
    time.sleep(0.005)
    with memoizing(memo):
        torch.load(path)
        for _ in range(2):
            assert torch.load(path, **named).device.type == named.get("map_location", "cpu") or callable(
                named["map_location"]
            )
        with torch.device("meta"):
            assert hits(memo, lambda: torch.load(path))[1] == 0
    assert memo.counts().num_hits == 0


def test_torchvision_warns_equally_often_on_a_hit(tmp_path, memo):
    vision = pytest.importorskip("torchvision.io")
    path = tmp_path / "a.jpg"
    write_jpeg(path, 1)
    time.sleep(0.005)

    def warned():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            vision.read_image(str(path))
            vision.decode_image(path)
            vision.decode_image(as_tensor(path.read_bytes()))
        return [(one.category, str(one.message), one.filename, one.lineno) for one in caught]

    plain = warned()
    with memoizing(memo):
        assert warned() == plain
        assert warned() == plain
    assert memo.counts().num_hits


def test_uninitialized_torchvision_results_are_not_cached(memo):
    v2 = pytest.importorskip("torchvision.transforms.v2")
    with memoizing(memo):
        v2.JPEG(50)(torch.zeros(3, 16, 16, dtype=torch.uint8))
    counts = memo.counts()
    assert (counts.num_hits, counts.num_misses) == (0, 0)


def test_opencv_distinguishes_kinds_of_input(tmp_path, memo):
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "a.png"
    write_png(path, 1)
    data = path.read_bytes()

    def outcomes():
        return [
            outcome(lambda one=one: cv2.imdecode(one, 1))
            for one in (as_array(data), bytearray(data), data, memoryview(data))
        ]

    plain = outcomes()
    with memoizing(memo):
        assert outcomes() == plain
        assert outcomes() == plain


def test_opencvs_environment_variables_are_part_of_the_key(tmp_path, memo, monkeypatch):
    cv2 = pytest.importorskip("cv2")
    write_png(tmp_path / "a.png", 1)
    time.sleep(0.005)
    with memoizing(memo):
        cv2.imread(str(tmp_path / "a.png"))
        monkeypatch.setenv("OPENCV_IO_MAX_IMAGE_PIXELS", "1000000")
        assert hits(memo, lambda: cv2.imread(str(tmp_path / "a.png")))[1] == 0


def test_torch_load_depends_on_the_file_name_too(tmp_path, memo):
    path, other = tmp_path / "a.pt", tmp_path / "a.safetensors"
    write_tensors(path, 1)
    os.link(path, other)
    time.sleep(0.005)
    plain = outcome(lambda: torch.load(other))
    with memoizing(memo):
        torch.load(path)
        assert outcome(lambda: torch.load(other)) == plain != outcome(lambda: torch.load(path))


def test_a_library_depends_on_the_file_name_too(tmp_path, memo):
    skimage = pytest.importorskip("skimage.io")
    imread = pytest.importorskip("imageio.v3").imread
    path, other = tmp_path / "a.png", tmp_path / "a.tif"
    write_png(path, 1)
    os.link(path, other)
    time.sleep(0.005)
    plain = [outcome(lambda: skimage.imread(other)), outcome(lambda: imread(other))]
    with memoizing(memo):
        skimage.imread(path)
        assert [outcome(lambda: skimage.imread(other)), outcome(lambda: imread(other))] == plain


def test_a_closed_archive_raises(tmp_path, memo):
    path = tmp_path / "a.npz"
    write_npz(path, 1)
    time.sleep(0.005)
    with memoizing(memo):
        archive = np.load(path)
        assert type(archive) is np.lib.npyio.NpzFile
        assert archive["first"].shape == archive["first.npy"].shape
        with pytest.raises(KeyError):
            archive["third"]
        archive.close()
        with pytest.raises(AttributeError):
            archive["first"]


def test_a_tiff_file_that_names_other_files_is_not_cached(tmp_path, memo):
    tifffile = pytest.importorskip("tifffile")
    path = tmp_path / "a.ome.tif"
    tifffile.imwrite(path, smooth(1), metadata={"axes": "YXS", "Name": "FileName"})
    time.sleep(0.005)
    with memoizing(memo):
        for _ in range(2):
            assert (tifffile.imread(path) == smooth(1)).all()
            assert type(tifffile.imread(path, out="memmap")) is np.memmap
    assert memo.counts().num_hits == 0


def test_an_open_tiff_file_is_read_normally(tmp_path, memo):
    tifffile = pytest.importorskip("tifffile")
    write_tiff(tmp_path / "a.tif", 1)
    time.sleep(0.005)
    with memoizing(memo):
        for _ in range(2):
            with tifffile.TiffFile(tmp_path / "a.tif") as file:
                assert (file.asarray() == smooth(1)).all()
    assert memo.counts().num_misses == 0


def test_pydicom_keeps_its_array_and_detects_dataset_changes(tmp_path, memo):
    pydicom = pytest.importorskip("pydicom")
    write_dicom(tmp_path / "a.dcm", 1)
    with memoizing(memo):
        pydicom.dcmread(tmp_path / "a.dcm").pixel_array  # noqa: B018
        dataset, num_hits = hits(memo, lambda: pydicom.dcmread(tmp_path / "a.dcm"))
        found, num_hits = hits(memo, lambda: dataset.pixel_array)
        assert num_hits == 1
        assert dataset.pixel_array is found
        dataset.PixelRepresentation = 1
        assert dataset.pixel_array.dtype == np.int16
        dataset.PhotometricInterpretation = "MONOCHROME1"
        assert hits(memo, lambda: dataset.pixel_array)[1] == 0


def test_pydicom_warns_each_time(tmp_path, memo):
    pydicom = pytest.importorskip("pydicom")
    write_dicom(tmp_path / "a.dcm", 1)
    dataset = pydicom.dcmread(tmp_path / "a.dcm")
    dataset.NumberOfFrames = 0
    dataset.save_as(tmp_path / "a.dcm")

    def warned():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pydicom.dcmread(tmp_path / "a.dcm").pixel_array  # noqa: B018
        return [(str(one.message), one.filename, one.lineno) for one in caught]

    plain = warned()
    assert plain
    with memoizing(memo):
        assert [warned() for _ in range(2)] == [plain] * 2


def test_nibabel_keeps_its_own_cache(tmp_path, memo):
    nibabel = pytest.importorskip("nibabel")
    write_nifti(tmp_path / "a.nii.gz", 1)
    time.sleep(0.005)
    with memoizing(memo):
        for _ in range(2):
            image = nibabel.load(tmp_path / "a.nii.gz")
            assert image.get_fdata() is image.get_fdata()
            assert (image.dataobj[..., 1] == image.get_fdata()[..., 1]).all()
            image.uncache()
            assert not image.in_memory


def test_nibabel_memory_maps_uncompressed_files(tmp_path, memo):
    nibabel = pytest.importorskip("nibabel")
    path = tmp_path / "a.nii"
    nibabel.save(nibabel.Nifti1Image(np.zeros((3, 4, 5), np.int16), np.eye(4)), path)
    time.sleep(0.005)
    plain = type(np.asanyarray(nibabel.load(path).dataobj))
    with memoizing(memo):
        assert [type(np.asanyarray(nibabel.load(path).dataobj)) for _ in range(2)] == [plain] * 2


def test_hdf5_files_open_for_writing_are_read_normally(tmp_path, memo):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5"
    write_hdf5(path, 1)
    time.sleep(0.01)
    with memoizing(memo):
        read_hdf5(path)
        with h5py.File(path, "r+") as file:
            file["x"][0, 0] = 7.0
            assert hits(memo, lambda: file["x"][()])[1] == 0
            assert file["x"][()][0, 0] == 7.0
        time.sleep(0.01)
        assert read_hdf5(path)[0, 0] == 7.0


def test_hdf5_does_not_use_the_cache_for_a_file_changed_since_opening(tmp_path, memo):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5"
    write_hdf5(path, 1)
    time.sleep(0.01)
    with memoizing(memo):
        with h5py.File(path) as file:
            before = file["x"][()]
            os.utime(path)
            time.sleep(0.01)
            again, num_hits = hits(memo, lambda: file["x"][()])
            assert num_hits == 0
            assert (again == before).all()
        assert hits(memo, lambda: read_hdf5(path))[1] == 0


def test_hdf5_slices_and_uncompressed_data_are_read_normally(tmp_path, memo):
    h5py = pytest.importorskip("h5py")
    write_hdf5(tmp_path / "a.h5", 1)
    time.sleep(0.01)
    with memoizing(memo), h5py.File(tmp_path / "a.h5") as file:
        for _ in range(2):
            assert file["x"][3].shape == (50,)
            assert file["x"].astype("f4")[()].dtype == np.float32
            assert file["plain"][()].shape == (3000,)
            assert np.asarray(file["x"], dtype=np.float32).dtype == np.float32
    assert memo.counts().num_misses == 0


def test_a_function_wrapped_by_the_script_is_not_cached(tmp_path, memo, monkeypatch):
    path = tmp_path / "a.npy"
    write_npy(path, 3)
    time.sleep(0.005)
    monkeypatch.setattr(np, "load", functools.lru_cache(np.load))
    with memoizing(memo):
        assert np.load(path) is np.load(path) and memo.counts().num_hits == 0


def test_a_tensor_from_the_cache_may_be_modified_in_a_graph(tmp_path, memo):
    path = tmp_path / "a.pt"
    torch.save(torch.arange(9.0), path)
    time.sleep(0.005)
    weight = torch.ones((), requires_grad=True)
    with memoizing(memo):
        for _ in range(2):
            with torch.no_grad():
                tensor = torch.load(path)
            assert not tensor._is_view() and float(tensor.mul_(weight).sum()) == 36.0
    assert memo.counts().num_hits == 1


def test_an_image_may_be_resized_in_place_whether_it_is_from_the_cache_or_not(tmp_path, memo):
    from torchvision.io import read_image

    path = tmp_path / "a.png"
    write_png(path, 3)
    time.sleep(0.005)
    with memoizing(memo):
        assert [read_image(str(path)).resize_(4).shape for _ in range(2)] == [
            (4,),
            (4,),
        ] and memo.counts().num_hits == 1
