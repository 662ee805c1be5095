"""Traces of configurations."""

from pathlib import Path

from legroom.gpus.catalog import find_gpu
from legroom.tuning.memory.admission import TrialGpu, virtual_gpus
from legroom.tuning.memory.tracer import Tracer
from legroom.tuning.trial.function import TrainFunction
from legroom.units import MiB

TUNED = Path(__file__).parents[1] / "tuned_functions.py"
FILE = Path(__file__).parents[3] / "gpu" / "tuning.py"


def test_growth_of_the_cache_in_the_third_step_is_predicted_from_two() -> None:
    """On an H200, this trial reserved 184 MiB in its second step and 216 MiB in its third step."""
    spec = find_gpu("h200")
    gpu = TrialGpu(index=0, memory=spec.total, context=spec.context, named_spec=spec)
    tracer = Tracer(TrainFunction.of(f"{FILE}:train"), [gpu], 1)
    try:
        assert tracer.trace({"width": 1024, "batch_size": 4096}, None, urgent=True).reserved == 216 * MiB
    finally:
        tracer.close()


def test_a_function_changes_no_files_while_it_is_estimated(tmp_path: Path) -> None:
    for name in ("overwritten", "deleted"):
        (tmp_path / f"{name}.txt").write_text("original")
    tracer = Tracer(TrainFunction.of(f"{TUNED}:changes_files"), virtual_gpus("1GiB"), 1)
    config = {"width": 64, "batch_size": 16, "lr": 0.01, "folder": str(tmp_path)}
    try:
        for _ in range(2):  # the second trace does not see the changes of the first one
            assert tracer.trace(config, None, urgent=True).reserved > 0
    finally:
        tracer.close()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "overwritten.txt": "original",
        "deleted.txt": "original",
    }
