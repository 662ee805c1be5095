"""What is said when a launch is over."""

from pathlib import Path

import pytest

from legroom.gpus.catalog import parse_gpus
from legroom.observe.script import Script
from legroom.scale.launching.folder import RankEnding, RunFolder
from legroom.scale.launching.outcome import Attempt, LaunchEnd, RankResult
from legroom.scale.launching.plan import LaunchPlan
from legroom.show.common.terminal import render_to_string
from legroom.show.launch.launch_report import render_launch_end, render_launch_start

FOLDER = RunFolder(Path("train.launch"))
LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:2978"


def plan(**options) -> LaunchPlan:
    return LaunchPlan(**{"script": Script("train.py"), "nproc": 2, **options})


def rank(number: int, *, code: int = 0, error: str = "", ending: bool = True, **facts) -> RankResult:
    told = RankEnding(
        rank=number,
        time=float(number),
        exit_code=code,
        ended="raised" if code else "finished",
        error=error,
        traceback=f"Traceback (most recent call last):\n{error}\n" if error else "",
        seconds=3.0,
        **facts,
    )
    return RankResult(
        rank=number, exit_code=code, ending=told if ending else None, files=FOLDER.files(number)
    )


def said(*ranks: RankResult, **options) -> str:
    end = LaunchEnd(attempts=(Attempt(number=0, seconds=4.0, ranks=ranks),))
    return " ".join(render_to_string(render_launch_end(end, plan(**options), FOLDER, None)).split())


def test_the_fullest_rank_is_named():
    peaks = {"device": 0, "capacity": 8 << 30, "steps": 5, "peak_reserved": 1}
    text = said(
        rank(0, peak_allocated=1 << 30, **peaks),
        rank(1, **{**peaks, "device": 1, "peak_allocated": 2 << 30}),
    )
    assert text.startswith("Finished in 4.0 s: both ranks; memory peaked at 2.00 GiB of 8.00 GiB, on rank 1.")


def test_ranks_that_all_filled_the_first_gpu_are_told_how_to_choose():
    text = said(*(rank(number, device=0, peak_allocated=1, capacity=2) for number in range(2)))
    assert "Ranks 0 and 1 both filled GPU 0." in text
    assert 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))' in text


def test_ranks_that_fell_alike_share_a_line():
    text = said(
        rank(0, code=1, error="ValueError: rank 0"),
        rank(1, code=1, error="ValueError: rank 1"),
        rank(2, code=1, error=LOST),
        rank(3, code=1, error=LOST),
    )
    assert "Rank 0 failed first after 3.0 s: ValueError: rank 0." in text
    assert "rank 1: the same error" in text
    assert "ranks 2 and 3: connection lost (RuntimeError)" in text


def test_a_rank_that_left_early_is_named_before_those_that_missed_it():
    text = said(rank(0, code=1, error=LOST), rank(1))
    assert text.startswith("Rank 1 ended without an error while others still waited for it")


def test_a_failure_on_another_node_is_said_to_be_there():
    text = said(rank(0, code=1, error=LOST), nodes=(2, 2), rendezvous="node1:29400")
    assert text.startswith(
        "The connection to other nodes was lost after 3.0 s: the first failure was on one of them"
    )


def test_an_exit_without_python_is_told_by_its_code():
    assert said(rank(0, code=7, ending=False)).startswith(
        "Rank 0 ended after 4.0 s with exit code 7, without a Python error."
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": parse_gpus("8GiB,8GiB")}, "2 ranks, a virtual GPU of 8.00 GiB each"),
        ({"gpus": parse_gpus("24GiB,8GiB")}, "2 ranks, virtual GPUs of 24.00 GiB and 8.00 GiB"),
        ({"real_gpus": 2}, "2 ranks, a GPU each"),
        ({"nodes": (2, 4), "rendezvous": "node1:29400"}, "2 to 4 nodes meet at node1:29400"),
        ({}, "2 ranks on the CPU"),
    ],
)
def test_the_opening_says_what_starts(options, words):
    assert words in " ".join(render_to_string(render_launch_start(plan(**options), FOLDER)).split())
