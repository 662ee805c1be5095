"""The next commands of a report."""

from dataclasses import replace

from legroom.diagnose.report.command import RunCommand
from legroom.diagnose.report.run_report import RunReport

NO_GPU = "AssertionError: Torch not compiled with CUDA enabled"


def make_report(make_run, error: str, *options: str) -> RunReport:
    run = make_run()
    run.ends(1, "raised", error)
    command = RunCommand(options=options, target=("train.py",), arguments=("--epochs", "3"))
    return replace(run.report(), command=command)


def test_script_without_a_gpu_is_offered_a_virtual_one(make_run):
    assert make_report(make_run, NO_GPU).next_commands[0][0] == "legroom run --gpu 8GiB train.py --epochs 3"


def test_no_virtual_gpu_is_offered_for_other_failures(make_run):
    for report in (
        make_report(make_run, NO_GPU, "--gpu", "4GiB"),
        make_report(make_run, "ValueError: a mistake"),
    ):
        assert not any("legroom run" in command for command, _ in report.next_commands)


def test_report_is_about_the_gpu_whose_error_ended_the_run(make_run):
    """Several replicas of DataParallel run out of memory, and only the first error is raised."""
    run = make_run()
    run.alloc(900)
    run.oom(200)
    first = run.events[-1]
    run.events.append(first._replace(device=1, message=first.message.replace("GPU 0", "GPU 1")))
    run.ends(1, "raised", "torch.OutOfMemoryError: Caught OutOfMemoryError in replica 0", first.message)
    report = run.report()
    assert report.oom is not None
    assert report.oom.event.device == 0
    assert report.device is not None
    assert report.device.index == 0
