"""If ranks wait for another rank, the messages name that rank, even if it has exited."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.lib.rank_pool import RankPool
from tests.unit.train.ranks import waiting_tasks as tasks

import legroom

SOURCE = Path(legroom.__file__).parent


@pytest.mark.ranks
@pytest.mark.parametrize(("kind", "call"), [("ddp", "step"), ("fsdp", "evaluate"), ("fsdp", "save")])
def test_a_rank_that_left_the_loop_early_is_named_on_the_waiting_ranks(tmp_path, kind, call):
    with RankPool(3) as pool:
        *errors, exited = pool.run(tasks.last_rank_exits, kind, call, str(tmp_path), timeout=30, may_die=True)
    assert exited is None
    for error in errors:
        assert "ank 2 has exited" in error


@pytest.mark.ranks
def test_rank_zero_saves_the_checkpoint_alone_if_another_rank_has_exited(tmp_path):
    with RankPool(2) as pool:
        error, _ = pool.run(tasks.last_rank_exits, "ddp", "save", str(tmp_path), timeout=30, may_die=True)
    assert error == "no error"
    assert [info.step for info in legroom.Checkpoints(tmp_path).saved] == [3, 2, 1]


@pytest.fixture(scope="module")
def two() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


@pytest.mark.ranks
@pytest.mark.parametrize("other", ["sleeps", "has left"])
def test_a_wait_inside_ddp_is_reported_with_the_lines_of_all_ranks(other):
    with RankPool(2) as two:
        messages, _ = two.run(tasks.ddp_waits, other)
    assert len(messages) == 1
    state = "has exited" if other == "has left" else r"is at .*waiting_tasks.py:\d+"
    assert re.fullmatch(
        rf"Rank 0 has waited for \d s at .*waiting_tasks.py:\d+. Rank 1 {state}. All ranks must make the same calls.",
        messages[0],
    )


@pytest.mark.ranks
def test_a_rank_that_computes_while_the_others_wait_inside_ddp_is_not_reported(two):
    assert two.run(tasks.ddp_waits, "computes") == [[], []]


@pytest.mark.ranks
def test_a_wait_is_reported_without_the_store_of_rank_zero(two):
    for rank, messages in enumerate(two.run(tasks.without_store)):
        assert len(messages) == 1
        assert re.match(
            rf"Rank {rank} has waited for \d s in a test at .*. The process group's store", messages[0]
        )


COLLECTIVES = {
    "all_gather", "all_gather_object", "all_reduce", "barrier", "broadcast", "broadcast_object_list", "gather_object",
    "new_group", "recv", "reduce", "scatter", "send",
}  # fmt: skip


def test_every_collective_of_legroom_is_observed():
    """A collective outside `with waiting(...)` could wait without a message."""
    silent = [
        f"{path.relative_to(SOURCE)}:{call.lineno}"
        for folder in ("train", "scale")
        for path in sorted((SOURCE / folder).rglob("*.py"))
        for call in _unobserved(ast.parse(path.read_text()))
        if path.name not in ("ray_worker.py",)  # Ray Train has its own timeout
    ]
    assert silent == []


def _unobserved(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the collectives outside `with waiting(...)`. Asynchronous collectives are skipped, because they do not
    wait."""
    if isinstance(node, ast.With) and any("waiting(" in ast.unparse(item) for item in node.items):
        return
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in COLLECTIVES
        and ast.unparse(node.func.value) in ("dist", "distributed", "torch.distributed")
        and not any(keyword.arg == "async_op" for keyword in node.keywords)
    ):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _unobserved(child)
