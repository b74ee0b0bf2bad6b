"""What ends a step, in scripts with an optimizer that steps, with one that never does, and with none."""

import torch

from hasten.agent.steps import BACKWARDS_ALONE, BACKWARDS_AT_MOST, BACKWARDS_CLEARED, Boundary


def backwards_until_a_step_ends(boundary, *, clearing_each=0):
    for number in range(1, 1000):
        if boundary.backward():
            return number
        if clearing_each and number % clearing_each == 0:
            boundary.clear()
    raise AssertionError("no step has ended")


def with_optimizer():
    boundary = Boundary()
    boundary.optimizers_made = True
    return boundary


def test_without_an_optimizer_a_backward_ends_a_step_soon():
    assert backwards_until_a_step_ends(Boundary()) == BACKWARDS_ALONE


def test_gradients_that_are_cleared_and_used_by_no_optimizer_are_used_by_the_script():
    assert backwards_until_a_step_ends(with_optimizer(), clearing_each=1) == BACKWARDS_CLEARED + 1


def test_gradients_may_be_accumulated_for_long_before_an_optimizer_steps():
    assert backwards_until_a_step_ends(with_optimizer()) == BACKWARDS_AT_MOST
    twice = with_optimizer()
    twice.clear()  # before the first backward there is nothing to be cleared
    assert backwards_until_a_step_ends(twice, clearing_each=16) == BACKWARDS_AT_MOST


def test_an_optimizer_that_steps_after_all_ends_the_steps_from_then_on():
    boundary = with_optimizer()
    backwards_until_a_step_ends(boundary, clearing_each=1)
    assert boundary.step(torch.optim.SGD([torch.zeros(1)], lr=0.1))
    assert not boundary.backward()


def test_one_optimizer_for_each_parameter_is_one_step_for_all_of_them():
    """As where each steps within backward, as soon as its parameter has its gradient."""
    boundary, optimizers = Boundary(), [torch.optim.SGD([torch.zeros(1)], lr=0.1) for _ in range(300)]
    assert [sum(boundary.step(optimizer) for optimizer in optimizers) for _ in range(5)] == [1] * 5


def test_an_optimizer_that_steps_on_alone_ends_the_steps_in_place_of_one_that_is_done():
    boundary, (first, other) = Boundary(), [torch.optim.SGD([torch.zeros(1)], lr=0.1) for _ in range(2)]
    assert boundary.step(first)
    assert [boundary.step(other) for _ in range(70)][-5:] == [True] * 5
