"""Trials as processes of this machine, without Ray.

A fork server that has imported torch starts them, so a trial begins in a fraction of a second; each has its own process and
its own share of a GPU. This loop waits for what they say, passes it on, and answers.
"""

from legroom.tuning.conductor import Conductor
from legroom.tuning.engine import Job, ended_politely
from legroom.tuning.fork_server import fork_server
from legroom.tuning.local_trials import LocalTrials
from legroom.tuning.staging import Stage

LOOK = 0.5
"""Seconds between two looks at estimates and the clock while nothing is said."""


class LocalEngine:
    """Runs a job's trials on this machine."""

    name = "local"

    def prepare(self, job: Job) -> None:
        fork_server(job.function)

    def run(self, job: Job, conductor: Conductor) -> None:
        stage = Stage(job, conductor)
        trials = LocalTrials(stage, fork_server(job.function))
        try:
            with ended_politely():
                while True:
                    while (orders := stage.hand_out()) is not None:
                        trials.start(orders)
                    if stage.is_over:
                        return
                    left = conductor.seconds_left
                    if left == 0.0:
                        trials.kill_all()
                        stage.time_is_up()
                        return
                    if trials.running:
                        trials.hear(trials.wait(LOOK if left is None else min(LOOK, left)))
                    else:
                        conductor.wait(LOOK)
        except KeyboardInterrupt:
            trials.kill_all()
            stage.interrupt()
            raise
        finally:
            trials.kill_all()
