import gc
import pickle
import threading
import weakref
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from hasten.data.layout.packing import ALIGNMENT, PackError, aligned, pack, unpack, write_buffers

Pair = namedtuple("Pair", "first second")


@dataclass
class Labelled:
    pixels: torch.Tensor
    label: int


def there_and_back(value):
    packed = pack(value)
    memory = bytearray(packed.size)
    write_buffers(packed.buffers, memoryview(memory))
    return unpack(packed.header, memoryview(memory))


def same_array(one, other):
    assert type(one) is type(other) and one.dtype == other.dtype and one.dtype.byteorder == other.dtype.byteorder
    assert one.shape == other.shape
    for name in one.dtype.names or [...]:  # the padding of a record's fields is not part of it
        assert one[name].tobytes() == other[name].tobytes()


DTYPES = [
    "u1", "?", ">i2", "<i4", "=i8", "<f2", ">f4", "f8", "c8", ">c16", "g", "M8[ns]", ">m8[s]", "S5", ">U3", "V7",
    [("a", "u1"), ("b", ">f8", (2,))], np.dtype([("a", "u1"), ("b", "f8")], align=True),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_array_of_any_dtype_round_trips_bit_by_bit(dtype):
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2 if dtype.kind == "b" else 256, 24 * dtype.itemsize, np.uint8)
    if dtype.kind == "U":
        values = np.array(["ab", "c", "xyz", ""] * 6, dtype)
    array = values.view(dtype).reshape(2, 3, 4)
    views = {
        "plain": array,
        "fortran": np.asfortranarray(array),
        "gaps": array[:, ::2, 1:],
        "backwards": array[::-1, :, ::-1],
        "one value": array[1, 2, 3, ...],
        "none": array[:0],
        "again and again": np.broadcast_to(array[0], (3, 3, 4)),
    }
    packed = pack(views)
    assert packed.size >= sum(view.nbytes for view in views.values())
    found = there_and_back(views)
    for name, view in views.items():
        same_array(found[name], np.asarray(view))
    assert found["fortran"].strides == views["fortran"].strides


@given(
    arrays.arrays(
        arrays.scalar_dtypes() | arrays.array_dtypes(), arrays.array_shapes(min_dims=0, min_side=0, max_dims=4)
    ),
    st.randoms(use_true_random=False),
)
@settings(max_examples=150, deadline=None)
def test_an_array_of_any_shape_and_layout_round_trips(array, random):
    axes = list(range(array.ndim))
    random.shuffle(axes)
    steps = tuple(slice(None, None, random.choice((1, 2, -1))) for _ in axes)
    view = np.asarray(array.transpose(axes)[steps])
    same_array(there_and_back([view])[0], view)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=99)


@given(
    st.recursive(
        LEAVES
        | arrays.arrays(np.uint8, arrays.array_shapes(max_dims=2)).map(lambda array: Pair("array", array.tolist())),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
        max_leaves=20,
    )
)
@settings(max_examples=100, deadline=None)
def test_a_nested_value_round_trips(value):
    assert there_and_back(value) == value


TENSORS = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", TENSORS, ids=str)
def test_a_tensor_of_any_dtype_round_trips_bit_by_bit(dtype):
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (2, 3, 4, 5 * size), dtype=torch.uint8)
    tensor = raw.view(dtype)
    views = [tensor, tensor.permute(0, 3, 1, 2), tensor[:, ::2, 1:], tensor[1, 2, 3, 4], tensor[:0]]
    for view, found in zip(views, there_and_back(views)):
        assert found.dtype == view.dtype and found.shape == view.shape
        assert torch.equal(
            found.contiguous().view(-1).view(torch.uint8), view.contiguous().view(-1).view(torch.uint8)
        )


def test_channels_last_stays_channels_last():
    image = torch.rand(2, 3, 5, 7).contiguous(memory_format=torch.channels_last)
    found = there_and_back(image)
    assert found.stride() == image.stride() and torch.equal(found, image)


def test_shared_objects_stay_shared():
    tensor, array = torch.ones(3), np.ones(3)
    found = there_and_back([tensor, array, tensor, array])
    assert found[0] is found[2] and found[1] is found[3]


def test_user_classes_round_trip():
    found = there_and_back({"pair": Pair(np.arange(3), 2), "labelled": Labelled(torch.arange(4), 7)})
    assert found["pair"].first.tolist() == [0, 1, 2] and found["labelled"].label == 7
    assert found["labelled"].pixels.tolist() == [0, 1, 2, 3]


class Photo(torch.Tensor):
    """A tensor subclass with an attribute."""


def test_a_tensor_subclass_keeps_its_type_and_attributes():
    photo = torch.arange(6).reshape(2, 3).as_subclass(Photo)
    photo.place = "Oslo"
    packed = pack(photo)
    assert packed.size == aligned(photo.nbytes)
    found = there_and_back(photo)
    assert type(found) is Photo and found.place == "Oslo" and found.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_torchvision_tensor_types_round_trip():
    pytest.importorskip("torchvision", exc_type=(ImportError, RuntimeError))
    from torchvision import tv_tensors

    boxes = tv_tensors.BoundingBoxes([[1, 2, 3, 4]], format="XYWH", canvas_size=(9, 8))
    found = there_and_back((tv_tensors.Image(torch.zeros(3, 4, 4)), boxes))
    assert type(found[0]) is tv_tensors.Image and type(found[1]) is tv_tensors.BoundingBoxes
    assert found[1].canvas_size == (9, 8) and found[1].format == boxes.format


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(3, requires_grad=True),
        torch.rand(3, dtype=torch.complex64).conj(),
        torch.eye(3).to_sparse(),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=["gradient", "conjugate", "sparse", "parameter"],
)
def test_a_tensor_with_more_than_elements_round_trips(tensor):
    found = there_and_back(tensor)
    assert type(found) is type(tensor) and found.requires_grad == tensor.requires_grad
    assert torch.equal(found.to_dense(), tensor.to_dense()) if tensor.is_sparse else torch.equal(found, tensor)


def test_strings_and_objects_in_arrays_round_trip():
    array = np.array(["a", None, 3], object)
    assert there_and_back(array).tolist() == ["a", None, 3]


def test_a_small_view_does_not_include_its_base():
    whole = torch.zeros(1 << 20, dtype=torch.uint8)
    packed = pack((whole[:10], whole.numpy()[:10]))
    assert len(packed.header) + packed.size < 1000


@pytest.mark.parametrize(
    "value", [lambda: 0, threading.Lock(), (part for part in ())], ids=["lambda", "lock", "generator"]
)
def test_a_value_that_cannot_be_pickled_raises(value):
    with pytest.raises(PackError, match="cannot be pickled"):
        pack({"image": np.zeros(3), "odd": value})


def test_unpacked_values_are_writable_views_of_the_memory():
    packed = pack((np.arange(4, dtype=np.uint8), torch.arange(4, dtype=torch.uint8)))
    memory = bytearray(packed.size)
    write_buffers(packed.buffers, memoryview(memory))
    assert packed.size % ALIGNMENT == 0
    array, tensor = unpack(packed.header, memoryview(memory))
    memory[0] = memory[ALIGNMENT] = 99
    assert array[0] == 99 and tensor[0] == 99
    array[0] = 1
    assert memory[0] == 1


class Columns:
    """Exports its own buffers when pickled, as tables of other libraries do."""

    def __init__(self, memory):
        self.memory = memory

    def __reduce_ex__(self, protocol):
        return Columns, (pickle.PickleBuffer(self.memory),)


def test_a_read_only_buffer_stays_read_only():
    frozen = np.arange(12, dtype=np.uint8)
    frozen.flags.writeable = False
    picture = np.asarray(Image.new("RGB", (4, 3), "red"))
    back = there_and_back([frozen, picture, Columns(b"abc")])
    assert not back[0].flags.writeable and not back[1].flags.writeable
    assert np.array_equal(back[0], frozen) and np.array_equal(back[1], picture) and bytes(back[2].memory) == b"abc"


def test_a_packed_value_is_freed_without_a_garbage_collection():
    tensor = torch.zeros(1000)
    gone = weakref.ref(tensor)
    gc.disable()
    try:
        packed = pack([tensor, tensor.numpy(), np.zeros(3)])
        del tensor, packed
        assert gone() is None
    finally:
        gc.enable()


def test_packed_values_in_a_cycle_are_collected():
    for _ in range(20):
        packed = pack([np.zeros(30), torch.zeros(30)])
        unpacked = there_and_back([np.zeros(30), torch.zeros(30)])
        cycle = [packed, unpacked]
        cycle.append(cycle)
        del packed, unpacked, cycle
    assert gc.collect() > 0


def test_invalid_bytes_raise():
    for header in (b"", b"\0" * 8, b"\xff" * 64, pickle.dumps(3)):
        with pytest.raises(Exception):  # noqa: B017 - whatever unpickling raises
            unpack(header, memoryview(bytearray(100)))
