"""Batches for other frameworks: NumPy views, and DLPack for JAX and TensorFlow."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from hasten.data.loader import Loader


class Line(Dataset):
    """Points on y = 3 x + 1."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = np.float32(index / 64)
        return {"x": np.array([x]), "y": np.array([3 * x + 1])}


def loader():
    return Loader(Line(), 16, shuffle=True, num_workers=1, generator=torch.Generator().manual_seed(0))


def test_a_numpy_training_step_learns():
    weight, bias = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
    for _ in range(60):
        for batch in loader_of_arrays.numpy():
            error = batch["x"] @ weight + bias - batch["y"]
            weight -= 0.5 * batch["x"].T @ error / len(error)
            bias -= 0.5 * error.mean(0)
    assert abs(weight.item() - 3) < 0.1 and abs(bias.item() - 1) < 0.1


loader_of_arrays = Loader(Line(), 16, shuffle=True, generator=torch.Generator().manual_seed(0))


def test_arrays_are_views_of_the_batch_and_keep_its_memory():
    [first, *rest] = loader().numpy()
    kept = first["x"].copy()
    assert not first["x"].flags.owndata
    assert len(list(loader())) == 4
    assert np.array_equal(first["x"], kept) and len(rest) == 3


def test_a_jax_training_step_learns():
    jax = pytest.importorskip("jax")

    def loss(parameters, x, y):
        return ((x @ parameters["weight"] + parameters["bias"] - y) ** 2).mean()

    step = jax.jit(jax.grad(loss))
    parameters = {"weight": jax.numpy.zeros((1, 1)), "bias": jax.numpy.zeros(1)}
    for _ in range(60):
        for batch in loader_of_arrays:
            x, y = jax.dlpack.from_dlpack(batch["x"]), jax.dlpack.from_dlpack(batch["y"])
            gradients = step(parameters, x, y)
            parameters = {name: parameters[name] - 0.2 * gradients[name] for name in parameters}
    assert abs(float(parameters["weight"][0, 0]) - 3) < 0.1


def test_a_tensorflow_training_step_learns():
    tensorflow = pytest.importorskip("tensorflow")
    weight, bias = tensorflow.Variable([[0.0]]), tensorflow.Variable([0.0])
    for _ in range(60):
        for batch in loader_of_arrays:
            x, y = (tensorflow.experimental.dlpack.from_dlpack(batch[name].__dlpack__()) for name in "xy")
            with tensorflow.GradientTape() as tape:
                loss = tensorflow.reduce_mean((x @ weight + bias - y) ** 2)
            for variable, gradient in zip((weight, bias), tape.gradient(loss, [weight, bias])):
                variable.assign_sub(0.2 * gradient)
    assert abs(float(weight[0, 0]) - 3) < 0.1
