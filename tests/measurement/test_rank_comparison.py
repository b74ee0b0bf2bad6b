"""Ranks compared by what each does in the same steps."""

import random

import pytest

from hasten.launch.ranks import compare
from hasten.records import Exchange, RankData, RankSteps, Where

STEPS = 40


def rank(number, *, size=3, own=0.1, waits=0.01, data=None, steps=STEPS, **changes):
    """One rank whose steps take so long on its own and waiting: seconds, or a list of them."""
    own = [own] * steps if isinstance(own, float) else own
    waits = [waits] * steps if isinstance(waits, float) else waits
    given = {
        "rank": number,
        "world_size": size,
        "host": "a",
        "node": 0,
        "job": "j",
        "backend": "gloo",
        "indices": tuple(range(10, 10 + len(own))),
        "seconds": tuple(o + w for o, w in zip(own, waits)),
        "phases": {
            "forward": tuple(0.4 * o for o in own),
            "backward": tuple(0.5 * o for o in own),
            "communication": tuple(waits),
        },
        "samples_per_step": 16.0,
        "data": data,
    }
    return RankSteps(**{**given, **changes})


def together(owns, *, transfer=0.01):
    """Ranks with these own times by step: each waits until the last has come."""
    last = [max(step) for step in zip(*owns)]
    return [
        rank(n, size=len(owns), own=own, waits=[transfer + end - o for end, o in zip(last, own)])
        for n, own in enumerate(owns)
    ]


def test_the_rank_that_waits_least_is_the_one_that_others_wait_for():
    ranks = compare(together([[0.1] * STEPS, [0.13] * STEPS, [0.1] * STEPS]))
    assert ranks.late is not None and ranks.late.ranks == (1,)
    assert ranks.late.saved.value == pytest.approx(0.03)
    assert ranks.transfer == pytest.approx(0.01)
    assert [row.waiting for row in ranks.rows] == pytest.approx([0.03, 0.0, 0.03])


def test_a_late_rank_is_late_in_the_phase_that_takes_it_longer():
    slow = rank(
        1,
        own=0.13,
        waits=0.01,
        phases={"forward": (0.04,) * STEPS, "backward": (0.08,) * STEPS, "communication": (0.01,) * STEPS},
    )
    ranks = compare([rank(0, waits=0.04), slow, rank(2, waits=0.04)])
    assert (ranks.late.phase, round(ranks.late.excess, 3)) == ("backward", 0.03)


def test_time_in_no_phase_is_the_script_s_own():
    slow = rank(
        1,
        own=0.15,
        waits=0.01,
        phases={"forward": (0.04,) * STEPS, "backward": (0.05,) * STEPS, "communication": (0.01,) * STEPS},
    )
    assert compare([rank(0, waits=0.06), slow, rank(2, waits=0.06)]).late.phase == "script"


def test_several_ranks_may_be_late_but_not_most():
    assert compare(together([[0.1] * STEPS] * 2 + [[0.15] * STEPS] * 2)).late.ranks == (2, 3)
    assert compare(together([[0.1] * STEPS] + [[0.15] * STEPS] * 2)).late is None


def test_ranks_that_are_late_in_turn_are_uneven_and_none_is_late():
    draw = random.Random(1)
    ranks = compare(together([[draw.choice([0.1, 0.1, 0.2]) for _ in range(200)] for _ in range(3)]))
    assert ranks.late is None
    assert ranks.imbalance == pytest.approx(0.037, abs=0.01)  # P(one is late) * 0.1 - a third of 0.1


def test_in_a_few_noisy_steps_turns_are_not_taken_for_one_rank():
    for seed in range(50):
        draw = random.Random(seed)
        turns = [[draw.choice([0.1, 0.1, 0.2]) + draw.gauss(0, 0.004) for _ in range(15)] for _ in range(3)]
        assert compare(together(turns)).late is None


def test_waits_for_a_core_are_neither():
    contended = [rank(0, waits=0.04), rank(1, own=0.13, run_delay=0.03), rank(2, waits=0.04)]
    assert compare(contended).late is None


def test_even_ranks_have_nothing():
    ranks = compare(together([[0.1] * STEPS] * 3, transfer=0.001))
    assert (ranks.late, ranks.imbalance, ranks.sampling, ranks.repeats_order, ranks.only) == (
        None,
        0.0,
        None,
        False,
        {},
    )


def test_only_steps_that_all_have_made_are_compared():
    ranks = compare([rank(0), rank(1, indices=tuple(range(20, 60))), rank(2)])
    assert ranks.num_steps == 30


def test_ranks_without_a_record_are_named():
    assert compare([rank(0, size=4), rank(2, size=4)]).missing == (1, 3)


def test_validation_on_one_rank_is_seen_on_that_rank():
    assert compare([rank(0, rare={"validation": 0.02}), rank(1), rank(2)]).only == {"validation": (0,)}
    assert compare([rank(n, rare={"validation": 0.02}) for n in range(3)]).only == {}


def test_an_exchange_costs_what_it_takes_on_the_rank_that_waits_least():
    line = Where(file="train.py", line=7)
    ranks = [
        rank(n, exchanges=(Exchange(where=line, calls=2.0, seconds=s),)) for n, s in enumerate((0.02, 0.005, 0.03))
    ]
    assert [e.seconds for e in compare(ranks).exchanges] == [0.005]


# ------------------------------------------------------------------------------------------------- the samples


def taken(orders, *, labels=None, drawn=None, num_samples=300):
    """What a rank took: the order of each epoch; a sample's fingerprints are of an augmented image and of its label."""
    labels = labels or (lambda index: f"label {index % 10}")
    marks = {str(i): (f"image {random.random()}", labels(i)) for i in orders[0]}
    drawn = len(orders[0]) if drawn is None else drawn
    return RankData(num_samples=num_samples, num_drawn=drawn, orders=tuple(map(tuple, orders)), samples=marks)


def shuffled(seed, count=300):
    return random.Random(seed).sample(range(count), count)


def split(number, seed, *, size=3):
    return shuffled(seed)[number::size]


def sampled(data):
    return compare([rank(n, size=len(data), data=one) for n, one in enumerate(data)])


def test_a_split_of_one_order_is_right():
    ranks = sampled([taken([split(n, 0), split(n, 1)]) for n in range(3)])
    assert (ranks.sampling, ranks.repeats_order) == (None, False)


def test_the_same_order_on_all_ranks_is_the_same_samples():
    assert sampled([taken([shuffled(0)])] * 3).sampling == "same"


def test_orders_of_the_whole_dataset_are_seen():
    assert sampled([taken([shuffled(n)]) for n in range(3)]).sampling == "whole"


def test_a_split_by_unequal_seeds_overlaps():
    assert sampled([taken([split(n, n)]) for n in range(3)]).sampling == "overlap"


def test_a_dataset_of_its_own_on_each_rank_is_a_split_whatever_the_indices():
    own = [
        taken([shuffled(0)], labels=lambda i, n=n: f"label {random.Random(i * 7 + n).randrange(10)}")
        for n in range(3)
    ]
    assert sampled(own).sampling is None


def test_a_shuffled_order_that_repeats_is_seen_and_one_in_sequence_is_not():
    assert sampled([taken([split(n, 0), split(n, 0)]) for n in range(3)]).repeats_order
    in_order = [list(range(n, 300, 3)) for n in range(3)]
    assert not sampled([taken([order, order]) for order in in_order]).repeats_order
