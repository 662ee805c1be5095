"""What is foretold of a configuration, against what a GPU showed."""

from pathlib import Path

from legroom.gpus.catalog import find_gpu
from legroom.tuning.memory.admission import Place
from legroom.tuning.memory.tracer import Tracer
from legroom.tuning.trial.function import TrainFunction
from legroom.units import MiB

FILE = Path(__file__).parents[2] / "gpu" / "tuning.py"


def test_the_cache_that_grows_in_the_third_step_is_foretold_from_two() -> None:
    """On an H200 this trial reserved 184 MiB in its second step and 216 MiB in its third."""
    gpu = find_gpu("h200")
    place = Place(index=0, memory=gpu.total, context=gpu.context, gpu=gpu)
    tracer = Tracer(TrainFunction.of(f"{FILE}:train"), [place], 1)
    try:
        assert tracer.trace({"width": 1024, "batch_size": 4096}, None, in_hurry=True).reserved == 216 * MiB
    finally:
        tracer.close()
