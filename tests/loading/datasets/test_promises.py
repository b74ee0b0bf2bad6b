"""A promise can be handed on, and nothing else."""

import copy
import pickle

import numpy as np
import pytest
import torch

from hasten.loading.datasets.promises import Promise, Token, TouchedError, Witness, token_of


def test_a_promise_that_is_handed_on_is_not_touched():
    witness = Witness()
    promise = Promise(3, "image", witness)
    handed_on = [(promise, 1), {"image": promise}]
    assert handed_on[0][0] is promise and promise is not None
    assert token_of(promise) == Token(3, "image")
    assert not witness.touched


@pytest.mark.parametrize(
    "touch",
    [
        lambda promise: promise + 1,
        lambda promise: 1 / promise,
        lambda promise: promise == 1,
        lambda promise: promise > 1,
        lambda promise: 1 in [promise],
        lambda promise: bool(promise),
        lambda promise: not promise,
        lambda promise: len(promise),
        lambda promise: [*promise],
        lambda promise: promise["image"],
        lambda promise: promise(1),
        lambda promise: {promise},
        lambda promise: f"{promise}",
        lambda promise: repr(promise),
        lambda promise: promise.shape,
        lambda promise: hasattr(promise, "shape"),
        lambda promise: isinstance(promise, torch.Tensor),
        lambda promise: setattr(promise, "label", 1),
        lambda promise: torch.stack([promise]),
        lambda promise: torch.as_tensor(promise),
        lambda promise: np.asarray(promise),
        lambda promise: copy.copy(promise),
        lambda promise: copy.deepcopy(promise),
        lambda promise: pickle.dumps(promise),
    ],
)
def test_whatever_else_is_done_with_it_is_noted(touch):
    witness = Witness()
    with pytest.raises((TouchedError, TypeError, ValueError, RuntimeError)):
        touch(Promise(0, None, witness))
        raise TouchedError  # torch and numpy may take what was raised for a no
    assert witness.touched
