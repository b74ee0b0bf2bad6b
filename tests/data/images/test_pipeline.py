"""Every known transform draws and returns what torchvision does; every other one is left to torchvision."""

import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from hasten.data.images.ops import draw_offset, draw_uniform
from hasten.data.images.pipeline import compile_transforms
from hasten.data.images.pixels import torch_resizes_uint8
from hasten.data.layout.scaling import ScaledImage, scale

try:
    from torchvision import transforms as v1
    from torchvision.transforms import v2
except (ImportError, RuntimeError):  # a CUDA build with a CPU build of torch raises RuntimeError
    pytest.skip("needs a torchvision that can be imported", allow_module_level=True)

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
needs_avx2 = pytest.mark.skipif(not torch_resizes_uint8(), reason="torch resizes uint8 through float on this CPU")


def photo(height, width, *, seed=0):
    """Smooth colors with some noise."""
    rows, columns = np.mgrid[:height, :width]
    smooth = np.stack([rows * 3 % 251, columns * 2 % 253, (rows * columns) // 50 % 255], axis=-1)
    noise = np.random.default_rng(seed).integers(-15, 16, smooth.shape)
    return np.clip(smooth + noise, 0, 255).astype(np.uint8)


def with_floats(result):
    if not isinstance(result, ScaledImage):
        return result
    out = torch.empty(result.pixels.shape)
    scale(result, out)
    return out


def ours(pipeline, image, seed):
    generator = torch.Generator().manual_seed(seed)
    result = with_floats(pipeline.complete(pipeline.prepare(image), generator))
    return result, generator.get_state()


def reference(transforms, image, seed):
    torch.manual_seed(seed)
    picture = Image.fromarray(image)
    for transform in transforms:
        picture = transform(picture)
    return picture.as_subclass(torch.Tensor), torch.get_rng_state()


def draws_are_torchvisions(transforms, image, seeds, *, pixels="identical", tolerance=0.0):
    pipeline = compile_transforms(transforms, pixels=pixels)
    assert pipeline is not None
    image.flags.writeable = False
    with torch.random.fork_rng(devices=[]):
        for seed in range(seeds):
            expected, expected_state = reference(transforms, image, seed)
            found, state = ours(pipeline, image, seed)
            assert torch.equal(state, expected_state), f"other draws for seed {seed}"
            assert found.shape == expected.shape
            assert found.dtype == expected.dtype
            difference = (found.double() - expected.double()).abs().max().item()
            assert difference <= tolerance, f"seed {seed}: {difference * 255:.2f}/255"


def both(name, *args, **options):
    """One transform of v1 and of v2, each followed by its conversion to floats."""
    return [
        pytest.param([getattr(v1, name)(*args, **options), v1.ToTensor()], id=f"v1.{name}{args}{options}"),
        pytest.param([getattr(v2, name)(*args, **options), *FLOAT], id=f"v2.{name}{args}{options}"),
    ]


ONE_BY_ONE = [
    *both("RandomResizedCrop", 32),
    *both("RandomResizedCrop", (20, 31), scale=(0.9, 1.0), ratio=(3.0, 4.0)),
    *both("RandomResizedCrop", 24, interpolation=v1.InterpolationMode.BICUBIC),
    *both("RandomResizedCrop", 24, interpolation=v1.InterpolationMode.NEAREST),
    *both("RandomHorizontalFlip"),
    *both("RandomVerticalFlip", 0.3),
    *both("Resize", 40),
    *both("Resize", 100),
    *both("Resize", (33, 21)),
    *both("Resize", 40, max_size=44),
    *both("Resize", 30, interpolation=v1.InterpolationMode.LANCZOS),
    *both("CenterCrop", 41),
    *both("CenterCrop", (70, 20)),
    *both("CenterCrop", 120),
    *both("RandomCrop", 30),
    *both("RandomCrop", (61, 20)),
    *both("RandomCrop", (61, 83)),
    *both("RandomCrop", 61, padding=4),
    *both("RandomCrop", 30, padding=(3, 5), fill=7),
    *both("RandomCrop", (90, 40), padding=(1, 2, 3, 4), pad_if_needed=True),
]


@pytest.mark.parametrize("transforms", ONE_BY_ONE)
def test_each_known_transform_is_bit_identical_to_torchvision(transforms):
    draws_are_torchvisions(transforms, photo(61, 83), 12)


CHAINS = {
    "train v1": [
        v1.Compose([v1.RandomResizedCrop(48), v1.RandomHorizontalFlip()]),
        v1.ToTensor(),
        v1.Normalize(MEAN, STD),
    ],
    "train v2": [v2.RandomResizedCrop(48), v2.RandomHorizontalFlip(), *FLOAT, v2.Normalize(MEAN, STD)],
    "evaluation": [v1.Resize(64), v1.CenterCrop(48), v1.ToTensor(), v1.Normalize(MEAN, STD)],
    "padded": [v1.Resize(64), v1.RandomCrop(48, padding=4), v1.ToTensor()],
    "uint8": [v1.RandomResizedCrop(48), v1.RandomVerticalFlip(), v1.PILToTensor()],
    "v1 converted": [
        v1.CenterCrop(48),
        v1.PILToTensor(),
        v1.ConvertImageDtype(torch.float32),
        v1.Normalize([0.5], [0.2]),
    ],
    "v2 converted": [v2.PILToTensor(), v2.ConvertImageDtype(torch.float32), v2.ToPureTensor()],
    "sequential": [
        torch.nn.Sequential(v1.CenterCrop(48), torch.nn.Sequential(v1.RandomHorizontalFlip())),
        v1.ToTensor(),
    ],
}


@pytest.mark.parametrize("transforms", CHAINS.values(), ids=CHAINS)
def test_a_chain_is_bit_identical_to_torchvision(transforms):
    draws_are_torchvisions(transforms, photo(120, 90), 25)


@needs_avx2
def test_a_tensor_with_equal_channels_may_be_passed_as_one_channel():
    grey = photo(61, 83)[:, :, 0].copy()
    transforms = [v2.ToImage(), v2.Resize(50), v2.RandomResizedCrop(32), v2.ToDtype(torch.float32, scale=True)]
    pipeline = compile_transforms(transforms, pixels="identical")
    with torch.random.fork_rng(devices=[]):
        for seed in range(12):
            expected, _ = reference(transforms, np.repeat(grey[:, :, None], 3, axis=2), seed)
            assert torch.equal(ours(pipeline, grey, seed)[0], expected)


@needs_avx2
@pytest.mark.parametrize("rule", ["identical", "close", "any"])
def test_resizing_a_tensor_equals_torchvision_for_every_pixel_rule(rule):
    transforms = [
        v2.ToImage(),
        v2.ToDtype(torch.uint8, scale=True),
        v2.Resize(70),
        v2.RandomResizedCrop(48, antialias=True, interpolation=v2.InterpolationMode.BICUBIC),
        v2.RandomHorizontalFlip(),
        v2.RandomCrop(50, padding=3),
        v2.CenterCrop((20, 60)),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
    draws_are_torchvisions(
        transforms, photo(120, 90), 25, pixels=rule, tolerance=0.0 if rule == "identical" else 1e-6
    )


@pytest.mark.parametrize("name", ["train v1", "train v2", "evaluation", "uint8"])
def test_close_pixels_are_within_one_of_torchvisions(name):
    chain = CHAINS[name]
    without_normalizing = [step for step in chain if type(step).__name__ != "Normalize"]
    one = 1.0 if name == "uint8" else 1 / 255 + 1e-6
    draws_are_torchvisions(without_normalizing, photo(120, 90), 40, pixels="close", tolerance=one)


def test_close_pixels_are_within_one_even_at_the_sharpest_edges():
    noise = np.random.default_rng(3).integers(0, 2, (200, 150, 3), np.uint8) * np.uint8(255)
    for size in ((40, 40), (199, 149), (300, 90)):
        transforms = [v1.RandomResizedCrop(size, scale=(0.01, 1.0)), v1.PILToTensor()]
        draws_are_torchvisions(transforms, noise, 15, pixels="close", tolerance=1.0)


@needs_avx2
def test_close_pixels_of_one_channel_are_within_one_even_at_the_sharpest_edges():
    noise = np.random.default_rng(3).integers(0, 2, (200, 150), np.uint8) * np.uint8(255)
    three = np.repeat(noise[:, :, None], 3, axis=2)
    for size in ((40, 40), (199, 149), (300, 90)):
        transforms = [v1.RandomResizedCrop(size, scale=(0.01, 1.0)), v1.PILToTensor()]
        pipeline = compile_transforms(transforms, pixels="close")
        with torch.random.fork_rng(devices=[]):
            for seed in range(15):
                found, expected = ours(pipeline, noise, seed)[0], reference(transforms, three, seed)[0]
                assert found.shape == expected.shape
                assert (found.int() - expected.int()).abs().max() <= 1


def test_an_image_with_equal_channels_may_be_passed_as_one_channel():
    grey = photo(61, 83)[:, :, 0].copy()
    three = np.repeat(grey[:, :, None], 3, axis=2)
    transforms = [
        v1.Resize(50),
        v1.RandomResizedCrop(32),
        v1.RandomHorizontalFlip(),
        v1.ToTensor(),
        v1.Normalize(MEAN, STD),
    ]
    pipeline = compile_transforms(transforms, pixels="identical")
    with torch.random.fork_rng(devices=[]):
        for seed in range(12):
            assert torch.equal(ours(pipeline, grey, seed)[0], reference(transforms, three, seed)[0])


def test_ops_that_draw_nothing_are_in_the_fixed_part():
    chain = [v1.Compose([v1.Resize(64), v1.CenterCrop(48)]), v1.RandomHorizontalFlip(), v1.ToTensor()]
    pipeline = compile_transforms(chain, pixels="identical")
    assert pipeline.prepare(photo(100, 80)).shape == (48, 48, 3)
    assert pipeline.complete(photo(48, 48), torch.Generator()).pixels.shape == (3, 48, 48)


def test_a_fingerprint_identifies_only_the_fixed_part():
    def fingerprint(*transforms, pixels="identical"):
        return compile_transforms([*transforms, v1.ToTensor()], pixels=pixels).fingerprint

    assert fingerprint(v1.Resize(64)) == fingerprint(v1.Resize(64), v1.RandomHorizontalFlip())
    assert fingerprint(v1.Resize(64)) == fingerprint(v2.Resize(64))
    assert fingerprint(v1.Resize(64)) != fingerprint(v1.Resize(65))
    assert fingerprint(v1.Resize(64)) != fingerprint(v1.Resize(64, v1.InterpolationMode.BICUBIC))
    assert fingerprint() != fingerprint(v1.CenterCrop(64))
    if torch_resizes_uint8():
        assert fingerprint(v1.Resize(64)) != fingerprint(v1.Resize(64), pixels="close")


def test_a_pipeline_survives_pickling():
    pipeline = compile_transforms(CHAINS["train v2"], pixels="close")
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline


class Mine(v1.RandomHorizontalFlip):
    """A subclass is never recognized."""


def hooked():
    flip = v1.RandomHorizontalFlip()
    flip.register_forward_hook(lambda module, given, result: result)
    return flip


def with_option():
    flip = v1.RandomHorizontalFlip()
    flip.strength = 2
    return flip


NOT_KNOWN = {
    "nothing": [],
    "no tensor": [v1.Resize(32)],
    "a function": [lambda image: image, v1.ToTensor()],
    "a lambda": [v1.Lambda(lambda image: image), v1.ToTensor()],
    "a subclass": [Mine(), v1.ToTensor()],
    "a hook": [hooked(), v1.ToTensor()],
    "a new option": [with_option(), v1.ToTensor()],
    "an unknown transform": [v1.RandomRotation(10), v1.ToTensor()],
    "its own draws": [v1.RandomApply([v1.CenterCrop(3)]), v1.ToTensor()],
    "reflected padding": [v1.RandomCrop(32, padding=4, padding_mode="reflect"), v1.ToTensor()],
    "padding with a fraction": [v2.Pad(2, fill=7.5), v2.ToImage()],
    "colored padding": [v1.Pad(2, fill=(1, 2, 3)), v1.ToTensor()],
    "a crop after the floats": [v1.ToTensor(), v1.CenterCrop(3)],
    "normalized twice": [v1.ToTensor(), v1.Normalize(MEAN, STD), v1.Normalize(MEAN, STD)],
    "erasing": [v1.ToTensor(), v1.RandomErasing()],
    "a border": [v1.Pad(3), v1.ToTensor()],
    "a jitter": [v1.ColorJitter(0.4, 0.4, 0.4, 0.2), v1.ToTensor()],
    "grayscale": [v1.Grayscale(3), v1.ToTensor()],
    "random grayscale": [v1.RandomGrayscale(0.5), v1.ToTensor()],
    "other channels": [v1.Grayscale(1), v1.ToTensor(), v1.Normalize(MEAN, STD)],
    "no deviation": [v1.ToTensor(), v1.Normalize(MEAN, [0.0, 1.0, 1.0])],
    "half floats": [v2.ToImage(), v2.ToDtype(torch.float16, scale=True)],
    "unscaled floats": [v2.ToImage(), v2.ToDtype(torch.float32)],
    "jitter on a tensor": [v2.ToImage(), v2.ColorJitter(0.3), v2.ToDtype(torch.float32, scale=True)],
    "grey from a tensor": [v2.ToImage(), v2.Grayscale(), v2.ToDtype(torch.float32, scale=True)],
    "aliased tensor": [v2.ToImage(), v2.Resize(9, antialias=False), v2.ToDtype(torch.float32, scale=True)],
    "nearest tensor": [
        v2.ToImage(),
        v2.Resize(9, v2.InterpolationMode.NEAREST),
        v2.ToDtype(torch.float32, scale=True),
    ],
    "v1 on a tensor": [v1.PILToTensor(), v1.Resize(9), v1.ConvertImageDtype(torch.float32)],
}


@pytest.mark.parametrize("transforms", NOT_KNOWN.values(), ids=NOT_KNOWN)
def test_transforms_that_are_not_known_exactly_are_not_compiled(transforms):
    assert compile_transforms(transforms, pixels="identical") is None


def test_another_default_dtype_is_not_compiled():
    torch.set_default_dtype(torch.float64)
    try:
        assert compile_transforms([v1.ToTensor()], pixels="identical") is None
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("rule", ["identical", "close"])
@pytest.mark.parametrize("transforms", [*CHAINS.values(), [v1.PILToTensor()]], ids=[*CHAINS, "nothing but a tensor"])
def test_an_input_is_never_written_to_or_returned_as_a_tensor(transforms, rule):
    image = photo(120, 90)
    before = image.copy()
    pipeline = compile_transforms(transforms, pixels=rule)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(4):
            result = pipeline.complete(pipeline.prepare(image), torch.Generator().manual_seed(seed))
            if isinstance(result, torch.Tensor):
                result.zero_()
    assert np.array_equal(image, before)


def test_a_crop_that_does_not_fit_raises():
    pipeline = compile_transforms([v1.RandomCrop(64), v1.ToTensor()], pixels="identical")
    with pytest.raises(ValueError, match="64 x 64 does not fit in 20 x 30"):
        pipeline.complete(photo(20, 30), torch.Generator())


def test_a_thread_that_drew_in_inference_mode_first_can_draw_outside_it():
    def draw():
        generator = torch.Generator().manual_seed(0)
        with torch.inference_mode():
            first = draw_uniform(0.0, 1.0, generator=generator)
        return first, draw_uniform(0.0, 1.0, generator=generator), draw_offset(9, generator=generator)

    with ThreadPoolExecutor(1) as pool:
        first, second, offset = pool.submit(draw).result()
    generator = torch.Generator().manual_seed(0)
    assert (first, second) == tuple(torch.rand(1, generator=generator).item() for _ in range(2))
    assert offset == torch.randint(0, 10, (1,), generator=generator).item()
