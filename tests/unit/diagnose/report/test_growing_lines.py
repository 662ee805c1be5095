"""Which growing lines are reported as leaks."""

import pytest

from legroom.memory.event_base import Category, Phase
from legroom.units import MiB

ACTIVATION, INPUT, TEMPORARY = Category.ACTIVATION, Category.INPUT, Category.TEMPORARY


def test_retained_graph_of_several_lines_is_one_leak(make_run):
    run = make_run()
    for _ in range(6):
        run.alloc(2, INPUT, line=5)
        run.alloc(30, ACTIVATION, line=11)
        run.alloc(20, ACTIVATION, line=12)
        run.alloc(1, TEMPORARY, line=13)
        run.end_step()
    (leak,) = run.report().leaks
    assert (leak.kind, leak.line, leak.lines, leak.steps) == ("graph", 11, 4, 6)
    assert (leak.bytes_per_step, leak.bytes) == (53 * MiB, 318 * MiB)
    assert "`loss.item()`" in leak.advice


def test_retained_tensors_are_distinguished_from_graphs(make_run):
    run = make_run()
    for _ in range(6):
        run.alloc(30, TEMPORARY, line=11)
        run.end_step()
    (leak,) = run.report().leaks
    assert (leak.kind, leak.line) == ("tensor", 11)


def test_tensor_recreated_larger_each_step_is_a_leak(make_run):
    run = make_run()
    last = run.alloc(10, TEMPORARY)
    for step in range(6):
        grown = run.alloc(20 + 10 * step, TEMPORARY)
        run.free(last)
        last = grown
        run.end_step()
    assert len(run.report().leaks) == 1


def test_growing_batches_are_not_a_leak(make_run):
    run = make_run()
    for step in range(8):
        batch = [run.alloc(10 + step, INPUT), run.alloc(50 + 10 * step, ACTIVATION)]
        run.end_step()
        run.free(*batch)
    assert run.report().leaks == ()


def test_correct_loop_has_no_leak(make_run):
    run = make_run()
    run.alloc(50, Category.PARAMETER)
    for step in range(8):
        work = [run.alloc(10, INPUT), run.alloc(100, ACTIVATION)]
        if step == 0:
            run.phase = Phase.OPTIMIZER
            run.alloc(100, Category.OPTIMIZER_STATE)
        run.free(*work)
        run.end_step()
    assert run.report().leaks == ()


@pytest.mark.parametrize("steps", [2, 4])
def test_few_steps_are_not_reported_as_a_leak(make_run, steps):
    run = make_run()
    for _ in range(steps):
        run.alloc(30, ACTIVATION)
        run.end_step()
    assert run.report().leaks == ()


def test_leaks_are_printed_as_json(make_run):
    run = make_run()
    for _ in range(6):
        run.alloc(30, ACTIVATION, line=11)
        run.end_step()
    (entry,) = run.report().as_json()["leaks"]
    assert {"file", "line", "kind", "bytes_per_step", "nodes_per_step", "holder", "advice"} <= set(entry)
