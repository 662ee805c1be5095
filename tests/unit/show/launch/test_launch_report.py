"""The report of a launch."""

from pathlib import Path

import pytest

from legroom.diagnose.report.run_report import RunReport
from legroom.gpus.catalog import parse_gpus
from legroom.memory.event_base import Category
from legroom.observe.script import Script
from legroom.scale.launching.folder import LaunchFolder, RankExit
from legroom.scale.launching.outcome import LaunchAttempt, LaunchResult, RankResult
from legroom.scale.launching.plan import LaunchPlan
from legroom.show.common.terminal import render_to_string
from legroom.show.launch.launch_report import render_launch_end, render_launch_start

FOLDER = LaunchFolder(Path("train.launch"))
LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:2978"


def plan(**options) -> LaunchPlan:
    return LaunchPlan(**{"script": Script("train.py"), "nproc": 2, **options})


def rank(number: int, *, code: int = 0, error: str = "", exit_record: bool = True, **facts) -> RankResult:
    record = RankExit(
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
        rank=number, exit_code=code, exit_record=record if exit_record else None, files=FOLDER.files(number)
    )


def summary(*ranks: RankResult, **options) -> str:
    end = LaunchResult(attempts=(LaunchAttempt(number=0, seconds=4.0, ranks=ranks),))
    return " ".join(render_to_string(render_launch_end(end, plan(**options), FOLDER, None)).split())


def test_rank_with_the_highest_peak_is_named():
    peaks = {"device": 0, "capacity": 8 << 30, "steps": 5, "peak_reserved": 1}
    text = summary(
        rank(0, peak_allocated=1 << 30, **peaks),
        rank(1, **{**peaks, "device": 1, "peak_allocated": 2 << 30}),
    )
    assert text.startswith("Both ranks finished in 4.0 s. Peak memory: 2.00 GiB of 8.00 GiB on rank 1.")


def test_ranks_that_share_a_gpu_get_a_hint():
    text = summary(*(rank(number, device=0, peak_allocated=1, capacity=2) for number in range(2)))
    assert "Ranks 0 and 1 both used GPU 0." in text
    assert 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))' in text


def test_ranks_with_the_same_failure_share_a_line():
    text = summary(
        rank(0, code=1, error="ValueError: rank 0"),
        rank(1, code=1, error="ValueError: rank 1"),
        rank(2, code=1, error=LOST),
        rank(3, code=1, error=LOST),
    )
    assert "Rank 0 failed first after 3.0 s: ValueError: rank 0." in text
    assert "rank 1: the same error" in text
    assert "ranks 2 and 3: connection lost (RuntimeError)" in text


def test_rank_that_exited_early_is_named_first():
    text = summary(rank(0, code=1, error=LOST), rank(1))
    assert text.startswith("Rank 1 exited without an error while other ranks were waiting")


def test_failure_on_another_node_is_reported():
    text = summary(rank(0, code=1, error=LOST), nodes=(2, 2), rendezvous="node1:29400")
    assert text.startswith(
        "The connection to other nodes was lost after 3.0 s, probably because a rank on another node failed first"
    )


def test_exit_without_a_python_error_shows_the_code():
    assert summary(rank(0, code=7, exit_record=False)).startswith(
        "Rank 0 exited after 4.0 s with code 7, without a Python error."
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gpus": parse_gpus("8GiB,8GiB")}, "2 ranks with a virtual GPU of 8.00 GiB each"),
        ({"gpus": parse_gpus("24GiB,8GiB")}, "2 ranks with virtual GPUs of 24.00 GiB and 8.00 GiB"),
        ({"real_gpus": 2}, "2 ranks with a GPU each"),
        (
            {"nodes": (2, 4), "rendezvous": "node1:29400"},
            "on each of 2 to 4 nodes (rendezvous at node1:29400)",
        ),
        ({}, "2 ranks on the CPU"),
    ],
)
def test_start_message_describes_the_ranks(options, text):
    assert text in " ".join(render_to_string(render_launch_start(plan(**options), FOLDER)).split())


def screen_lines(end: LaunchResult, report: RunReport | None = None) -> int:
    """Return the number of lines on a terminal with 80 columns, without the traceback."""
    text = render_to_string(render_launch_end(end, plan(), FOLDER, report))
    return sum(max(1, -(-len(line) // 80)) for line in text.splitlines())


def test_a_launch_of_many_ranks_fits_on_a_screen():
    peaks = {"device": 0, "capacity": 8 << 30, "steps": 5, "peak_reserved": 1 << 30}
    ranks = tuple(rank(number, peak_allocated=number << 20, **peaks) for number in range(64))
    end = LaunchResult(attempts=(LaunchAttempt(number=0, seconds=4.0, ranks=ranks),))
    assert screen_lines(end) <= 24
    text = render_to_string(render_launch_end(end, plan(), FOLDER, None))
    assert "and 56 ranks with lower peaks" in text
    verbose = render_to_string(render_launch_end(end, plan(), FOLDER, None, verbose=True))
    assert "and 48 ranks with lower peaks" in verbose


def test_a_launch_that_ran_out_of_memory_fits_on_a_screen(make_run):
    run = make_run(arguments=["--batch-size", "256"])
    for number, category in enumerate(Category):
        run.alloc(20 + 10 * number, category, line=3 + number)
    run.oom(900, line=11)
    run.ends(1, "raised", "torch.OutOfMemoryError: CUDA out of memory.", "Traceback")
    first = rank(0, code=1, error="torch.OutOfMemoryError: CUDA out of memory.")
    others = (rank(number, code=1, error=f"ValueError: {'a' * number}") for number in range(1, 20))
    end = LaunchResult(attempts=(LaunchAttempt(number=0, seconds=4.0, ranks=(first, *others)),))
    assert screen_lines(end, run.report()) - 3 <= 24  # three lines of the traceback
    text = render_to_string(render_launch_end(end, plan(), FOLDER, run.report()))
    assert "Suggested change  LG603" in text
    assert "rank 1: ValueError: a" in text


def test_ranks_that_share_a_gpu_are_named_next_to_an_out_of_memory_error(make_run):
    run = make_run(arguments=["--batch-size", "256"])
    run.alloc(100, Category.ACTIVATION, line=11)
    run.oom(1000, line=11)
    run.ends(1, "raised", "torch.OutOfMemoryError: CUDA out of memory.", "Traceback")
    error = "torch.OutOfMemoryError: CUDA out of memory."
    facts = {"device": 0, "capacity": 1 << 30, "steps": 5, "peak_reserved": 1 << 29, "peak_allocated": 1}
    ranks = tuple(rank(number, code=1, error=error, **facts) for number in range(2))
    end = LaunchResult(attempts=(LaunchAttempt(number=0, seconds=4.0, ranks=ranks),))
    text = render_to_string(render_launch_end(end, plan(), FOLDER, run.report()))
    assert "Ranks 0 and 1 both used GPU 0. Give each rank its own GPU" in text
    assert "\n…\n" not in text
