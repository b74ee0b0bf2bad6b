"""Runs a few samples of a recipe beside those of its dataset, and says whether they are the same to the bit.

In: a recipe that may or may not hold. Out: why it does not, or None. Refuses to know how the recipe was found.

The global generators are put back: nobody can tell afterwards that samples were made.
"""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from hasten.loading.datasets.keeping import UnkeepableError, kept, opened
from hasten.loading.datasets.promises import TouchedError
from hasten.loading.datasets.survey import digest_of
from hasten.loading.generators import kept as generators_kept
from hasten.loading.generators import seed_generators
from hasten.loading.memory.nest import finished
from hasten.loading.memory.packing import PackError, pack, unpack, write_buffers
from hasten.loading.recipe import Recipe

NUM_SAMPLES = 4
SEEDS = (0x5EED, 0xFEED5)
BUDGET = 1.0  # seconds, after which no further sample is begun
LONGEST = 3.0  # seconds for the first sample, after which no second one is begun

Pair = tuple[Callable[[Any], Any], Recipe]
"""What makes a sample as the dataset does, and the recipe that is to make the same."""


def why_not(fresh: Callable[[], Pair], *, num_samples: int, generators: Sequence[Any] = ()) -> str | None:
    """Why a recipe does not hold for a dataset of `num_samples`; None where nothing was seen that speaks against it.

    `fresh` is called before every run, and gives transforms that are all in the same state; so are `generators`,
    those that the transforms share with others.
    """
    try:
        states = [_state_of(generator) for generator in generators]
    except Exception as error:  # the system's has no state
        return f"{type(error).__name__} was raised by a generator that was asked for its state"

    def restored() -> Pair:
        for generator, state in zip(generators, states):
            _set_state(generator, state)
        return fresh()

    with generators_kept():
        try:
            return _first_difference(restored, num_samples)
        except TouchedError:
            return "it works on what its transforms return"
        except (PackError, UnkeepableError) as error:
            return f"what cannot be kept: {error}"
        except Exception as error:  # the user's own; it comes again where the sample is asked for
            return f"{type(error).__name__} was raised while samples were made for a trial"
        finally:
            for generator, state in zip(generators, states):
                _set_state(generator, state)


def _first_difference(fresh: Callable[[], Pair], num_samples: int) -> str | None:
    began = time.perf_counter()
    for number, index in enumerate(_spread(num_samples)):
        reason = _differs(fresh, index, SEEDS[number % 2], SEEDS[1 - number % 2])
        if reason is not None:
            return f"sample {index}: {reason}"
        spent = time.perf_counter() - began
        if number == 0 and spent > LONGEST:
            return f"a sample takes too long to be made {3 * NUM_SAMPLES} times for a trial"
        if number > 0 and spent > BUDGET:
            break
    return None


def still_holds(recipe: Recipe, index: Any, prepared: Any) -> bool:
    """Whether `recipe.prepare(index)` still gives `prepared`, to the bit. For a look now and then at what is kept."""
    digest = digest_of(prepared)
    return digest is not None and digest == digest_of(recipe.prepare(index))


def _differs(fresh: Callable[[], Pair], index: Any, seed: int, other_seed: int) -> str | None:
    """Why a sample is not made as it should be, or None."""
    make, _ = fresh()
    seed_generators(seed)
    before = _states()
    expected = make(index)
    after = _states()
    _, recipe = fresh()
    seed_generators(seed)
    prepared = recipe.prepare(index)
    if _states() != before:
        return "it draws from a generator outside of the dataset's transforms"
    revived = _through_memory(prepared)
    sample = finished(recipe.complete(revived, torch.Generator().manual_seed(seed)))
    if _states() != (after if recipe.draws_globally else before):
        return "its transforms do not draw what they should"
    if _digest(sample) is None or _digest(sample) != _digest(expected):
        return "made in two parts it is another sample"
    _, again = fresh()
    seed_generators(other_seed)
    if not still_holds(again, index, prepared):
        return "it is another one every time"
    return None


def _spread(num_samples: int) -> Iterator[int]:
    """The first, the last, and some between."""
    last = num_samples - 1
    yield from dict.fromkeys((0, last, last // 3, last * 7 // 11))


def _states() -> tuple[bytes, object, bytes]:
    """All of the generators' states, a normal number made ahead included."""
    numpy_state = pickle.dumps(np.random.get_state(legacy=False))
    return torch.default_generator.get_state().numpy().tobytes(), random.getstate(), numpy_state


def _state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _digest(sample: Any) -> bytes | None:
    """Of what a sample is; whether two of its leaves are one object does not matter."""
    return digest_of(opened(kept(sample), []))


def _through_memory(value: Any) -> Any:
    header, buffers, size = pack(value)
    memory = memoryview(bytearray(size))
    write_buffers(buffers, memory)
    return unpack(header, memory).value
