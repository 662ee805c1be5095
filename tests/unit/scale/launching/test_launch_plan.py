"""Defaults and rejected combinations of a launch plan."""

from pathlib import Path

import pytest

from legroom.errors import UsageError
from legroom.gpus.catalog import find_gpu, parse_gpus
from legroom.observe.script import Script
from legroom.scale.launching.plan import LaunchPlan, plan_launch


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("train.py").write_text("pass")

    def plan(*arguments: str, gpus: str = "", **options) -> LaunchPlan:
        settings = {"nproc": None, "real_gpus": 0, **options, "gpus": parse_gpus(gpus) if gpus else ()}
        return plan_launch(Script("train.py", arguments), **settings)

    return plan


def test_a_single_gpu_is_used_for_every_rank(plan):
    assert plan(nproc=4, gpus="8GiB").gpus == (find_gpu("8GiB"),) * 4


def test_the_number_of_ranks_is_the_number_of_virtual_gpus(plan):
    assert plan(gpus="24GiB,8GiB").nproc == 2


def test_the_number_of_ranks_is_the_number_of_real_gpus(plan):
    assert plan(real_gpus=3).nproc == 3


@pytest.mark.parametrize("strategy", ["dp", "split"])
def test_single_process_strategies_have_one_rank_with_all_gpus(plan, strategy):
    planned = plan(gpus="8GiB,8GiB", strategy=strategy)
    assert (planned.nproc, planned.gpus) == (1, (find_gpu("8GiB"), find_gpu("8GiB")))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nproc": 3, "gpus": "8GiB,8GiB"}, "3 ranks need 3 GPUs, but `--gpu` lists 2"),
        ({"nproc": 4, "real_gpus": 1}, "4 ranks need 4 GPUs, but this machine has 1. Use `--nproc 1`"),
        ({"nproc": 2, "strategy": "dp"}, "uses all GPUs in one process"),
        ({"nodes": "2"}, "2 nodes need a common address to connect"),
        ({"nodes": "4:2"}, "`4:2` is not a valid number of nodes"),
        ({"nodes": "two"}, "`two` is not a valid number of nodes"),
        ({"rendezvous": "node1:http"}, "`node1:http` is not a valid address"),
        ({"rendezvous": "node1:1", "engine": "ray"}, "Omit `--rendezvous`"),
    ],
)
def test_invalid_combinations_are_rejected(plan, options, message):
    with pytest.raises(UsageError, match=message):
        plan(**options)


def test_a_missing_script_is_rejected(plan):
    with pytest.raises(UsageError, match=r"Script `trian\.py` not found"):
        plan_launch(Script("trian.py"), nproc=1, gpus=(), real_gpus=0)


def test_torchrun_command_on_one_machine(plan):
    assert plan("--lr", "0.1", nproc=2).torchrun == (
        "torchrun --standalone --nproc-per-node=2 train.py --lr 0.1"
    )


def test_torchrun_command_with_virtual_gpus_and_a_strategy(plan):
    planned = plan(gpus="24GiB,8GiB", strategy="fsdp")
    assert planned.torchrun == (
        "LEGROOM=24GiB,8GiB LEGROOM_STRATEGY=fsdp torchrun --standalone --nproc-per-node=2 train.py"
    )


def test_restarts_use_a_separate_store_per_attempt(plan):
    assert plan(nproc=2, max_restarts=3).torchrun == (
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node=2 --max-restarts=3 train.py"
    )


def test_torchrun_command_on_several_nodes(plan):
    planned = plan(nproc=8, nodes="2:4", rendezvous="node1")
    assert planned.torchrun == (
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=node1:29400 --rdzv-id=train --nproc-per-node=8 train.py"
    )
    assert planned.world_size == 32


def test_ranks_share_the_cores(plan, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    planned = plan(nproc=2)
    assert planned.threads == 4
    assert planned.torchrun.startswith("OMP_NUM_THREADS=4 torchrun ")


def test_the_options_repeat_the_launch(plan):
    planned = plan(nproc=2, gpus="8GiB", strategy="ddp", nodes="2", rendezvous="node1:5", max_restarts=1)
    assert " ".join(planned.options) == (
        "--gpu 8GiB --nproc 2 --nodes 2 --rendezvous node1:5 --strategy ddp --max-restarts 1"
    )
