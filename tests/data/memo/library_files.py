"""Files that libraries read, how each is read, and everything observable of the results."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

# What each library reads: how a file is written, from a seed, and how it is read


def smooth(seed, shape=(24, 20, 3)):
    return np.clip(np.add.outer(np.arange(shape[0]) * 3 + seed * 40, np.ones(shape[1:])), 0, 255).astype(np.uint8)


def write_png(path, seed):
    pytest.importorskip("PIL.Image").fromarray(smooth(seed)).save(path, "PNG")


def write_jpeg(path, seed):
    pytest.importorskip("PIL.Image").fromarray(smooth(seed)).save(path, "JPEG")


def write_tiff(path, seed):
    pytest.importorskip("tifffile").imwrite(path, smooth(seed), compression="zlib")


def write_npy(path, seed):
    with open(path, "wb") as file:
        np.save(file, np.asfortranarray(np.full((5, 7), seed, np.float32)))


def write_npz(path, seed):
    with open(path, "wb") as file:
        np.savez_compressed(file, first=np.full((5, 7), seed), second=np.arange(3) + seed)


def write_tensors(path, seed):
    tree = {"image": torch.full((3, 4), seed, dtype=torch.uint8).t(), "label": seed, "more": [torch.arange(5) + seed]}
    torch.save(tree, path)


def write_wave(path, seed):
    samples = np.sin(np.arange(2000) * (seed + 1) / 50).reshape(-1, 2)
    pytest.importorskip("soundfile").write(path, samples, 8000, format="FLAC")


def write_nifti(path, seed):
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Nifti1Image((np.arange(60).reshape(3, 4, 5) + seed).astype(np.int16), np.eye(4))
    image.header.set_slope_inter(2.0, 1.0)
    Path(path).write_bytes(gzip.compress(image.to_bytes()))


def write_dicom(path, seed):
    pydicom = pytest.importorskip("pydicom")
    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID = "1.2.3"
    dataset.Rows, dataset.Columns, dataset.SamplesPerPixel = 24, 20, 1
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 16, 15, 0
    dataset.PhotometricInterpretation = "MONOCHROME2"
    dataset.PixelData = smooth(seed, (24, 20)).astype("<u2").tobytes()
    dataset["PixelData"].VR = "OW"
    dataset.compress(pydicom.uid.RLELossless)
    dataset.save_as(path, enforce_file_format=True)


def write_hdf5(path, seed):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(3000.0).reshape(60, 50) + seed, compression="gzip")
        file.create_dataset("plain", data=np.arange(3000.0) + seed)


def read_npz(path):
    with np.load(path) as archive:
        return archive["first"], archive["second"]


def read_hdf5(path, index=()):
    import h5py

    with h5py.File(path) as file:
        return file["x"][index]


def call(module, name, *others, **named):
    """Return a reader of paths that looks its function up when called."""

    def read(path):
        return getattr(pytest.importorskip(module), name)(path, *others, **named)

    return read


def call_on_bytes(module, name, make=bytes, **named):
    """Return a reader for a function that decodes bytes in memory."""

    def read(path):
        return getattr(pytest.importorskip(module), name)(make(Path(path).read_bytes()), **named)

    return read


def read_turbojpeg(path):
    try:
        jpeg = pytest.importorskip("turbojpeg").TurboJPEG()
    except (OSError, RuntimeError) as error:  # the library is not installed, or too old
        pytest.skip(str(error).partition("\n")[0])
    return jpeg.decode(Path(path).read_bytes())


def as_array(data):
    return np.frombuffer(data, np.uint8)


def as_tensor(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


READS = {
    "cv2.imread": ("a.png", write_png, lambda path: call("cv2", "imread")(str(path))),
    "cv2.imread of gray": ("a.png", write_png, lambda path: call("cv2", "imread", 0)(str(path))),
    "cv2.imreadmulti": ("a.tif", write_tiff, lambda path: call("cv2", "imreadmulti")(str(path))),
    "cv2.imdecode": ("a.jpg", write_jpeg, call_on_bytes("cv2", "imdecode", as_array, flags=1)),
    "torchvision.io.read_image": ("a.jpg", write_jpeg, lambda path: call("torchvision.io", "read_image")(str(path))),
    "torchvision.io.decode_image": ("a.jpg", write_jpeg, call("torchvision.io", "decode_image", mode="GRAY")),
    "decode_image of bytes": ("a.jpg", write_jpeg, call_on_bytes("torchvision.io.image", "decode_image", as_tensor)),
    "torchvision.io.decode_jpeg": ("a.jpg", write_jpeg, call_on_bytes("torchvision.io", "decode_jpeg", as_tensor)),
    "torchvision.io.decode_png": ("a.png", write_png, call_on_bytes("torchvision.io", "decode_png", as_tensor)),
    "numpy.load": ("a.npy", write_npy, call("numpy", "load")),
    "numpy.load with pickles": ("a.npy", write_npy, call("numpy", "load", allow_pickle=True)),
    "numpy.load of an archive": ("a.npz", write_npz, read_npz),
    "torch.load": ("a.pt", write_tensors, call("torch", "load", weights_only=True, map_location="cpu")),
    "tifffile.imread": ("a.tif", write_tiff, call("tifffile", "imread")),
    "soundfile.read": ("a.flac", write_wave, call("soundfile", "read", dtype="float32")),
    "imageio.v3.imread": ("a.png", write_png, call("imageio.v3", "imread")),
    "skimage.io.imread": ("a.png", write_png, call("skimage.io", "imread")),
    "skimage.io.imread of TIFF": ("a.tif", write_tiff, call("skimage.io", "imread")),
    "simplejpeg.decode_jpeg": ("a.jpg", write_jpeg, call_on_bytes("simplejpeg", "decode_jpeg", colorspace="BGR")),
    "turbojpeg": ("a.jpg", write_jpeg, read_turbojpeg),
    "pydicom": ("a.dcm", write_dicom, lambda path: pytest.importorskip("pydicom").dcmread(path).pixel_array),
    "nibabel get_fdata": ("a.nii.gz", write_nifti, lambda path: call("nibabel", "load")(path).get_fdata()),
    "nibabel float32": (
        "a.nii.gz",
        write_nifti,
        lambda path: call("nibabel", "load")(path).get_fdata(dtype=np.float32),
    ),
    "nibabel dataobj": ("a.nii.gz", write_nifti, lambda path: np.asanyarray(call("nibabel", "load")(path).dataobj)),
    "h5py": ("a.h5", write_hdf5, read_hdf5),
    "h5py with a slice": ("a.h5", write_hdf5, lambda path: read_hdf5(path, slice(None))),
    "h5py with an ellipsis": ("a.h5", write_hdf5, lambda path: read_hdf5(path, ...)),
}


def leaves(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [leaf for one in value for leaf in leaves(one)]
    return [value]


def described(value):
    """Return everything observable of a value."""
    if isinstance(value, dict):
        return {key: described(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value), [described(one) for one in value]
    if isinstance(value, np.ndarray):
        flags = value.flags.writeable, value.flags.c_contiguous, value.flags.f_contiguous, value.flags.aligned
        return type(value), value.dtype, value.shape, value.strides, flags, value.tolist()
    if isinstance(value, torch.Tensor):
        size = value.untyped_storage().nbytes()
        return type(value), value.dtype, value.shape, value.stride(), value.storage_offset(), size, value.tolist()
    return type(value), value


def overwrite(value):
    for leaf in leaves(value):
        if isinstance(leaf, torch.Tensor):
            leaf.zero_()
        elif isinstance(leaf, np.ndarray) and leaf.flags.writeable:
            leaf[...] = 0


def hits(memo, read):
    before = memo.counts().num_hits
    value = read()
    return value, memo.counts().num_hits - before


def outcome(read):
    try:
        return described(read())
    except Exception as error:
        return type(error), str(error)
