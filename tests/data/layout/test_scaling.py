"""Floats are bit-identical whether computed for an image, for a batch, or on a device."""

import dataclasses

import pytest
import torch

from hasten.data.layout.scaling import ScaledImage, Scaling, scale, scale_batch

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALINGS = [
    Scaling(),
    Scaling(mean=MEAN, std=STD),
    Scaling(reciprocal=True),
    Scaling(mean=MEAN, std=STD, reciprocal=True),
]


def every_value():
    """Return an image with every value in each channel."""
    return torch.arange(256, dtype=torch.uint8).repeat(3).view(1, 3, 16, 16)


def by_definition(pixels, scaling):
    """Compute the floats as ToTensor, ToDtype and Normalize do."""
    floats = pixels.to(torch.float32)
    floats = floats * (1 / 255) if scaling.reciprocal else floats / 255
    if not scaling.mean:
        return floats
    return (floats - torch.tensor(scaling.mean).view(-1, 1, 1)) / torch.tensor(scaling.std).view(-1, 1, 1)


@pytest.mark.parametrize("scaling", SCALINGS, ids=repr)
def test_an_image_is_scaled_by_definition(scaling):
    pixels = every_value()[0]
    for strided in (pixels, pixels.permute(1, 2, 0).contiguous().permute(2, 0, 1), pixels[:1].expand(3, -1, -1)):
        out = torch.empty(3, 16, 16)
        scale(ScaledImage(strided, scaling), out)
        assert torch.equal(out, by_definition(strided, scaling))


@pytest.mark.parametrize("scaling", SCALINGS, ids=repr)
def test_a_batch_is_scaled_by_definition_and_contiguous(scaling):
    pixels = torch.cat([every_value(), every_value().flip(3)])
    for strided in (pixels, pixels.contiguous(memory_format=torch.channels_last)):
        scaled = scale_batch(strided, scaling)
        assert scaled.is_contiguous()
        assert torch.equal(scaled, by_definition(pixels, scaling))


def test_the_two_ways_of_scaling_differ():
    assert Scaling() != Scaling(reciprocal=True)
    assert not torch.equal(
        scale_batch(every_value(), Scaling()), scale_batch(every_value(), Scaling(reciprocal=True))
    )


@pytest.mark.gpu
@pytest.mark.parametrize("scaling", SCALINGS, ids=repr)
def test_scaling_on_a_device_is_bit_identical(scaling):
    assert torch.equal(scale_batch(every_value().cuda(), scaling).cpu(), scale_batch(every_value(), scaling))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_fused_scaling_is_within_a_millionth(scaling):
    fused = dataclasses.replace(scaling, is_fused=True)
    difference = (scale_batch(every_value(), fused) - scale_batch(every_value(), scaling)).abs().max()
    assert difference < 1e-6
