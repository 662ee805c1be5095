"""Settings for all tests."""

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from legroom.observe.source import loaded_modules

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # on a busy machine, the default profile fails tests because they are slow

os.environ.setdefault("LEGROOM_CACHE", "off")  # tests neither read nor write the cache of earlier runs
os.environ.setdefault("LEGROOM_LIVE", "off")  # runs of the tests do not appear in a monitor
os.environ["LEGROOM_LANG"] = "en"  # the locale of this machine does not change the texts
os.environ.setdefault("OMP_NUM_THREADS", "1")  # pytest runs one worker per core already

# If a shell starts the tests in the background, they ignore Ctrl-C, and their child processes inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_OWN_CODE = tuple(f"{Path(__file__).parents[1] / name}{os.sep}" for name in ("tests", "bench"))
_SYSTEM = Path(__file__).parent / "system"
_GPU = Path(__file__).parent / "gpu"


def pytest_configure(config: pytest.Config) -> None:
    """Hide real GPUs unless `tests/gpu` is selected. All other tests expect a machine without a GPU."""
    chosen = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    if not any(path.is_relative_to(_GPU) for path in chosen):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files whose `pytestmark` is deselected, for example by `-m "not slow"`. Some of them import Lightning or
    Ray, which takes seconds."""
    excluded = re.findall(r"not (\w+)", config.option.markexpr)
    if not excluded or collection_path.suffix != ".py":
        return None
    marks = re.search(r"^pytestmark = (.+)", collection_path.read_text(encoding="utf-8"), re.M)
    return True if marks and any(f"mark.{name}" in marks[1] for name in excluded) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark system tests as slow, and run the slowest tests first. If they came last, one worker would still run them
    after all others have finished."""
    for item in items:
        if _SYSTEM in item.path.parents:
            item.add_marker(pytest.mark.slow)
    slowest_first = ("ray", "browser", "ranks", "slow")

    def position(item: pytest.Item) -> int:
        if item.name in _LONGEST:
            return -1
        return next((i for i, name in enumerate(slowest_first) if item.get_closest_marker(name)), 4)

    items.sort(key=position)


_LONGEST = (
    "test_a_pipeline_keeps_fewer_activations_than_a_split_batch",
    "test_a_study_has_the_same_results_without_fork",
    "test_an_estimate_and_its_largest_batch_are_the_same_without_fork",
    "test_modules_and_commands_work_without_posix_functions",
    "test_minilm_learns_and_a_second_run_resumes",
    "test_the_example_shows_a_summary_and_an_estimate_once",
    "test_trials_and_ranks_are_placed_on_both_nodes",
)
"""Tests that take more than ten seconds."""


@pytest.fixture(autouse=True, scope="module")
def _freeze_older_objects() -> None:
    """Exclude objects older than the test module from garbage collections and heap scans. Many tests would otherwise
    spend most of their time there."""
    gc.collect()
    gc.freeze()


class _CurrentTest:
    """The state that the hooks below keep about the running test. Hooks are used because they are faster than
    fixtures, and there are thousands of tests."""

    trace_function: Any = None
    folder = ""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _CurrentTest.trace_function = sys.gettrace()
    _CurrentTest.folder = str(item.path.parent)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Fail the test that left a trace function set. Otherwise, a later test would fail."""
    before, after = _CurrentTest.trace_function, sys.gettrace()
    sys.settrace(before)
    assert after is before


_all_user_modules = loaded_modules._user_modules
_is_of_user = loaded_modules._is_of_user


def _is_part_of_test(file: object) -> bool:
    """Return False for `bench` and the tests in other folders. They are not the user's modules: searching hundreds of
    modules takes seconds, a real program has only a few, and their variables would be found as holders."""
    return (
        not (isinstance(file, str) and file.startswith(_OWN_CODE))
        or os.path.dirname(file) == _CurrentTest.folder
    )


def _user_modules_of_test(*state: Any) -> list[tuple[str, str]]:
    return [(name, file) for name, file in _all_user_modules(*state) if _is_part_of_test(file)]


def _is_of_test(name: str, module: ModuleType) -> bool:
    return _is_part_of_test(vars(module).get("__file__")) and _is_of_user(name, module)


loaded_modules._user_modules = _user_modules_of_test
loaded_modules._is_of_user = _is_of_test


@pytest.fixture
def imported_objects() -> Iterator[None]:
    """Include objects that imports created, such as module variables, in heap scans."""
    gc.unfreeze()
    yield
    gc.freeze()
