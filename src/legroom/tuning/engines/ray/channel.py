"""The connection between a trial in a Ray worker and Ray Tune."""

from dataclasses import replace

from legroom.tuning.schedule.protocol import Action
from legroom.tuning.trial.process import TrialTask, redirect_output
from legroom.tuning.trial.ray_session import report_of_session
from legroom.tuning.trial.trial import ReportMessage

TASKS, REPORTED, ENDED, PROCESS = "tasks", "legroom_report", "legroom_end", "legroom_process"


class TuneChannel:
    """Sends reports to Ray Tune. After each report, Ray Tune continues the trial or ends its thread."""

    def __init__(self) -> None:
        self.is_closed = False
        self._report = report_of_session()  # while the function runs, `ray.tune.report` is replaced
        self.process: int | None = None
        """The process ID of the forked process that waits for Ray Tune's decision about its report."""

    def report(self, message: ReportMessage) -> Action:
        try:
            self._report({REPORTED: message, PROCESS: self.process})
        except SystemExit:  # Ray raises SystemExit to stop a function that waits in a report
            self.is_closed = True
            return Action.STOP
        return Action.CONTINUE


def adapt_to_worker(task: TrialTask) -> TrialTask:
    """Prepare this worker for a trial, and return the task with the GPU index in this worker. If Ray chose the GPU,
    only that GPU is visible, so its index is 0.
    """
    import ray

    redirect_output(task)
    if task.gpu is None or not ray.get_gpu_ids():
        return task
    return replace(task, gpu=replace(task.gpu, index=0))
