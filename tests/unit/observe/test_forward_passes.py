"""Evaluations are recognized by comparing forward passes with backward passes. Training is never called an evaluation."""

import sys

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from legroom.observe.forward_passes import ForwardPasses


class Program:
    """A model whose calls and backward passes are recorded."""

    def __init__(self):
        self.passes, self.model = ForwardPasses(), nn.Linear(2, 2)
        self.backward = self.passes.went_backward

    def verdict(self):
        return self.passes.evidence(sys._getframe(1)).is_evaluation


@pytest.fixture
def program():
    made = Program()
    # Lines of the user's files belong to the call stack, so the hook must not be a function of this file.
    hook = eval(
        compile("lambda module, _: called(module)", "<hook>", "eval"), {"called": made.passes.model_called}
    )
    handle = register_module_forward_pre_hook(hook)
    yield made
    handle.remove()


def train(program, steps=3):
    program.model.train()
    for _ in range(steps):
        program.model(torch.ones(2))
        program.backward()


def run(program, batches, *, is_training):
    found = None
    for _ in range(batches):
        program.model(torch.ones(2))
        found = program.verdict()
        if is_training:
            program.backward()
    return found


def test_trained_model_in_evaluation_mode_is_an_evaluation(program):
    def other():
        program.model.eval()
        program.model(torch.ones(2))
        return program.verdict()

    train(program)
    assert other() is True


def test_first_training_pass_is_unknown(program):
    program.model(torch.ones(2))
    assert program.verdict() is None


def test_views_of_one_step_are_training(program):
    for step in range(3):
        for _ in range(4):
            program.model(torch.ones(2))
            assert program.verdict() in ((None,) if step == 0 else (False,))
        program.backward()


def test_evaluation_after_the_step_of_the_same_function_is_an_evaluation(program):
    def train_and_validate():
        program.model.train()
        program.model(torch.ones(2))
        program.backward()
        program.model.eval()
        program.model(torch.ones(2))
        return program.verdict()

    assert [train_and_validate() for _ in range(2)] == [True, True]


def test_forward_pass_before_another_backward_pass_is_training(program):
    def train_twice():
        program.model.train()
        program.model(torch.ones(2))
        program.backward()
        program.model.eval()
        program.model(torch.ones(2))
        found = program.verdict()
        program.backward()
        return found

    assert train_twice() is not True


def test_training_below_many_functions_is_training(program):
    def train_below(functions):
        if functions % 2:
            return train_below(functions - 1)
        if functions:
            return train_below(functions - 1)
        model, x = program.model, torch.ones(2)
        for step in range(6):
            if step < 5:
                model(x)
            else:
                _ = model(x), model(x), model(x)
                found = program.verdict()
            (lambda: program.backward())()
        return found

    assert train_below(100) is False


def test_method_with_a_train_flag_evaluates_in_its_second_batch(program):
    run(program, 3, is_training=True)
    assert run(program, 2, is_training=False) is True


def test_function_named_like_an_evaluation_is_one_after_training(program):
    def validate():
        program.model(torch.ones(2))
        return program.verdict()

    train(program)
    assert validate() is True


def test_training_in_a_function_named_like_a_test_is_not_an_evaluation(program):
    def test_model():
        for _ in range(3):
            program.model(torch.ones(2))
            found = program.verdict()
            program.backward()
        return found

    assert test_model() is False


def test_discriminator_in_evaluation_mode_in_a_training_step_is_training(program):
    for _ in range(2):
        program.model.train()
        program.model(torch.ones(2))
        program.backward()
        program.model.eval()
        program.model(torch.ones(3, 2))
        assert program.verdict() is not True
        program.backward()


def test_teacher_without_gradients_is_not_an_evaluation(program):
    teacher = nn.Linear(2, 2).eval()

    def targets():
        with torch.no_grad():
            teacher(torch.ones(2))
        return program.verdict()

    for _ in range(3):
        assert targets() is not True
        program.model(torch.ones(2))
        program.backward()


def test_inline_evaluation_in_the_middle_of_an_epoch(program):
    for step in range(4):
        program.model.train()
        program.model(torch.ones(2))
        assert program.verdict() is not True
        program.backward()
        if step % 2:
            program.model.eval()
            for _ in range(2):
                program.model(torch.ones(2))
                assert program.verdict() is True


def test_generator_that_evaluates(program):
    def outputs():
        program.model.eval()
        for _ in range(2):
            program.model(torch.ones(2))
            yield program.verdict()

    train(program)
    assert list(outputs()) == [True, True]


def test_training_after_an_evaluation_is_training(program):
    def validate():
        program.model.eval()
        for _ in range(3):
            program.model(torch.ones(2))

    for _ in range(3):
        train(program)
        validate()
    program.model.train()
    assert run(program, 3, is_training=True) is not True


def test_loop_over_phases_evaluates_after_the_mode_changes(program):
    for phase in ("train", "val"):
        program.model.train(phase == "train")
        for _ in range(2):
            program.model(torch.ones(2))
            assert (program.verdict() is True) == (phase == "val")
            if phase == "train":
                program.backward()


@pytest.mark.parametrize(("calls_per_step", "verdict"), [(1, True), (2, None)])
def test_loop_without_backward_passes_after_training_with_one_call_per_step(program, calls_per_step, verdict):
    for _ in range(3):
        for _ in range(calls_per_step):
            program.model(torch.ones(2))
        program.backward()
    for _ in range(3):
        program.model(torch.ones(2))
        found = program.verdict()
    assert found is verdict


@pytest.mark.parametrize("gradients", [True, False])
def test_evaluations_with_gradients_are_recorded_with_their_steps(program, gradients):
    def evaluate():
        program.model.eval()
        with torch.set_grad_enabled(gradients):
            run(program, 3, is_training=False)

    train(program)
    evaluate()
    program.passes.find_evaluations(3)
    found = [(frame.function, steps) for frame, steps in program.passes.evaluations.items()]
    assert found == ([("run", {3})] if gradients else [])
