"""How samples become a batch."""

import numpy as np
import pytest
import torch

from hasten.data.layout.rows import MismatchError
from hasten.data.layout.scaling import ScaledImage, Scaling
from hasten.data.layout.tree import LateImages, Layout, map_tensors, with_floats


def filled(layout, samples):
    memory = np.zeros(layout.num_bytes(len(samples)), dtype=np.uint8)
    arrays = layout.arrays(memory, len(samples))
    objects = layout.write(samples, layout.targets(arrays), 0)
    return arrays, objects


def test_a_batch_consists_of_views_of_the_memory():
    samples = [(torch.full((2,), k), k) for k in range(3)]
    layout = Layout(samples[0])
    arrays, objects = filled(layout, samples)
    images, numbers = layout.batch(arrays, objects)
    assert images.tolist() == [[0, 0], [1, 1], [2, 2]] and numbers.tolist() == [0, 1, 2]
    assert images.data_ptr() == arrays[0].data_ptr()


def test_each_array_starts_at_a_cache_line():
    layout = Layout((np.uint8(1), torch.ones(3), 2))
    memory = np.zeros(layout.num_bytes(5), dtype=np.uint8)
    start = memory.ctypes.data
    assert [(array.data_ptr() - start) % 64 for array in layout.arrays(memory, 5)] == [0, 0, 0]


def test_a_sample_can_be_read_back_from_its_row():
    sample = {"x": (torch.arange(3), 2, "word"), "y": [np.arange(2, dtype=np.int8), np.float32(1.5), True]}
    layout = Layout(sample)
    arrays, objects = filled(layout, [sample, sample])
    again = layout.read(arrays, 1, objects[1])
    assert again["x"][0].tolist() == [0, 1, 2] and again["x"][1:] == (2, "word") and type(again["x"]) is tuple
    assert again["y"][0].tolist() == [0, 1] and again["y"][1:] == [1.5, True] and type(again["y"][1]) is np.float32


@pytest.mark.parametrize(
    "other",
    [
        (torch.ones(3), 1),
        (torch.ones(2).int(), 1),
        (torch.ones(2), 1.0),
        [torch.ones(2), 1],
        (torch.ones(2),),
        (torch.ones(2, requires_grad=True), 1),
        (np.ones(2), 1),
        (torch.ones(2), 1 << 70),
    ],
    ids=str,
)
def test_a_sample_with_another_structure_is_a_mismatch(other):
    layout = Layout((torch.ones(2), 1))
    with pytest.raises(MismatchError):
        filled(layout, [(torch.ones(2), 1), other])


@pytest.mark.parametrize(
    "sample",
    [
        None,
        object(),
        {1, 2},
        np.array("word"),
        np.array([object()]),
        torch.ones(2).to_sparse(),
        torch.ones(1, device="meta"),
    ],
    ids=lambda sample: type(sample).__name__,
)
def test_a_sample_that_cannot_be_stored_in_rows_is_a_mismatch(sample):
    with pytest.raises(MismatchError):
        Layout((1, sample))


def test_an_array_with_another_byte_order_is_not_accepted():
    layout = Layout(np.arange(3, dtype="<i4"))
    with pytest.raises(MismatchError):
        filled(layout, [np.arange(3, dtype=">i4")])


def test_images_become_floats_in_their_rows():
    image = ScaledImage(torch.full((3, 2, 2), 255, dtype=torch.uint8), Scaling(mean=(0.5,) * 3, std=(0.5,) * 3))
    layout = Layout((image, 1))
    arrays, objects = filled(layout, [(image, 1)])
    assert layout.batch(arrays, objects)[0].tolist() == [[[[1.0, 1.0]] * 2] * 3]
    assert torch.equal(with_floats((image, 1))[0], torch.ones(3, 2, 2))


def test_late_images_stay_bytes_in_their_rows():
    image = ScaledImage(torch.full((3, 2, 2), 7, dtype=torch.uint8), Scaling())
    layout = Layout((image, 1), late_floats=True)
    arrays, objects = filled(layout, [(image, 1)] * 2)
    late = layout.batch(arrays, objects)[0]
    assert isinstance(late, LateImages) and late.pixels.dtype == torch.uint8 and late.pixels.shape == (2, 3, 2, 2)


def test_late_images_agree_with_torchs_collate():
    image = ScaledImage(torch.full((3, 2, 2), 7, dtype=torch.uint8), Scaling())
    assert Layout.of((image, 1), late_floats=True) is not None


def test_an_image_with_another_normalization_is_a_mismatch():
    pixels = torch.zeros(3, 2, 2, dtype=torch.uint8)
    layout = Layout(ScaledImage(pixels, Scaling()), late_floats=True)
    with pytest.raises(MismatchError):
        filled(layout, [ScaledImage(pixels, Scaling(reciprocal=True))])


def test_a_function_reaches_every_tensor_of_a_batch():
    batch = {"a": [torch.ones(1), "word"], "b": (torch.ones(1), 3)}
    assert map_tensors(batch, lambda tensor: tensor.item() + 1) == {"a": [2.0, "word"], "b": (2.0, 3)}
