"""The pytest plugin: memory tests that run with or without a GPU.

    @pytest.mark.gpu_memory("6 GiB")      # the test fails if its code needs more
    @pytest.mark.no_leaks                 # the test fails if its GPU memory is still allocated after the test

pytest imports this module at every start, even in projects that do not use it. This module therefore imports neither
torch nor other Legroom modules until a test runs that uses a mark or a fixture of this plugin. `-p no:legroom`
disables the plugin.
"""

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from legroom.integrations.memory_test import MemoryTest
    from legroom.observe.virtual.gpu import VirtualGPU
    from legroom.run.record import BlockRecording

MAX_SUMMARY = 10
_MARKS = ("gpu_memory", "no_leaks")
_running: "pytest.StashKey[MemoryTest]" = pytest.StashKey()
_result: "pytest.StashKey[dict[str, Any]]" = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("legroom", "GPU memory (legroom)").addoption(
        "--legroom-report",
        metavar="DIR",
        default=None,
        help="Write a capture and a web page to DIR for each test marked `gpu_memory` or `no_leaks`.",
    )


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "gpu_memory(size): fail the test if its code needs more GPU memory. `size` is a size or a GPU name, as in "
        '`gpu_memory("6 GiB")`. Without a GPU, the test runs on a virtual GPU.',
        "no_leaks: fail the test if GPU memory that the test allocated is still allocated after the test.",
    ):
        config.addinivalue_line("markers", line)
    folder = report_folder(config)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(
                f"--legroom-report: cannot create {folder} ({error.strerror}). Choose another directory."
            ) from None


def report_folder(config: pytest.Config) -> Path | None:
    given = config.getoption("--legroom-report")
    return None if given is None else config.invocation_params.dir / given


# --- fixtures


@pytest.fixture
def virtual_gpu(request: pytest.FixtureRequest) -> "VirtualGPU":
    """The active virtual GPU. The memory size comes from the marker `gpu_memory` or from an indirect parameter,
    and is 8 GiB by default."""
    test: MemoryTest = request.node.stash[_running]
    assert test.virtual_gpu is not None
    return test.virtual_gpu


@pytest.fixture
def recording() -> "BlockRecording":
    """A recording that is not started yet. Use the recording as `with recording:`, and read its results after the
    block."""
    from legroom.run.record import BlockRecording

    return BlockRecording()


# --- the test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        _close(item)  # pytest skips the teardown hook after an interrupt


@pytest.hookimpl(
    wrapper=True, trylast=True
)  # after pytest's own wrappers, whose teardown requires their setup
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    is_virtual = _uses_virtual_gpu(item)
    if is_virtual or any(item.get_closest_marker(name) for name in _MARKS):
        _start(item, is_virtual=is_virtual)
    return (yield from _explained(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    test = item.stash.get(_running, None)
    if test is not None:
        test.begin_call()
    return (yield from _explained(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        result = yield from _explained(item)
        test = item.stash.get(_running, None)
        if test is not None:
            _finish(item, test)
        return result
    finally:
        _close(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: "pytest.CallInfo[Any]"
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    test = item.stash.get(_running, None)
    if test is not None and report.failed:
        test.has_failed = True
    if call.when == "teardown" and _result in item.stash:
        report.legroom = item.stash[_result]  # type: ignore[attr-defined]  # pytest-xdist sends it to its controller
        del item.stash[_result]
    return report


def _start(item: pytest.Item, *, is_virtual: bool) -> None:
    from legroom.errors import LegroomError
    from legroom.integrations.memory_test import MemoryTest

    marks = {mark.name for mark in item.iter_markers() if mark.name in _MARKS}
    test = MemoryTest(item.nodeid, with_leaks="no_leaks" in marks, is_measured=bool(marks))
    item.stash[_running] = test
    gpu = _gpu_of(item)
    try:
        test.start(gpu, is_virtual=is_virtual)
    except LegroomError as error:
        message = str(error)
    else:
        return
    pytest.fail(message, pytrace=False)


def _uses_virtual_gpu(item: pytest.Item) -> bool:
    """Return True if a test uses the fixture `virtual_gpu` of this plugin.

    A project may have its own fixture with this name, which may use the fixture of this plugin. The check reads a
    private attribute of pytest, and returns False if the attribute does not exist.
    """
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    for definition in reversed(known.get("virtual_gpu", ())):
        if getattr(definition.func, "__module__", "") == __name__:
            return True
        if "virtual_gpu" not in definition.argnames:
            return False
    return False


def _gpu_of(item: pytest.Item) -> Any:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    mark = item.get_closest_marker("gpu_memory")
    if mark is None:
        return parameters.get("virtual_gpu")
    if "virtual_gpu" in parameters:
        pytest.fail(
            "The test has the marker `gpu_memory` and a parameter for `virtual_gpu`. Specify the size only once.",
            pytrace=False,
        )
    if len(mark.args) != 1 or mark.kwargs:
        pytest.fail(
            'The marker `gpu_memory` requires one size: `@pytest.mark.gpu_memory("6 GiB")`.', pytrace=False
        )
    return mark.args[0]


def _explained(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run a phase of a test.

    An out-of-memory error becomes a failure that shows the needed memory and the lines that allocated the most
    memory.
    """
    try:
        return (yield)
    except Exception as error:
        test = item.stash.get(_running, None)
        message = test.explain(error) if test is not None else None
        if message is None:
            raise
    pytest.fail(message, pytrace=False)


def _finish(item: pytest.Item, test: "MemoryTest") -> None:
    if test.with_leaks and not test.has_failed:
        funcargs = getattr(item, "funcargs", None)
        if funcargs:
            funcargs.clear()  # the fixtures have ended, but pytest keeps their values until the next test
    leaked = test.finish()
    result = test.result()
    if result is not None:
        item.stash[_result] = result
        folder = report_folder(item.config)
        if folder is not None:
            test.write(folder)
        if not result["peak"] and not test.has_failed:
            item.warn(
                pytest.PytestWarning(
                    f"{item.name} used no GPU memory, so Legroom's pytest markers have no effect. Move the tensors of the test to `cuda`."
                )
            )
    if leaked:
        pytest.fail(leaked, pytrace=False)


def _close(item: pytest.Item) -> None:
    test = item.stash.get(_running, None)
    if test is not None:
        test.close()
        del item.stash[_running]


# --- the summary


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    found = {report.nodeid: report.legroom for report in reports if hasattr(report, "legroom")}
    results = sorted(found.values(), key=lambda result: -result["peak"])
    if not results:
        return
    from legroom.integrations.memory_test import summary_lines

    terminalreporter.section("GPU memory")
    for line in summary_lines(results[:MAX_SUMMARY]):
        terminalreporter.write_line(line)
    more = len(results) - MAX_SUMMARY
    if more > 0:
        terminalreporter.write_line(f"and {more} more {'test' if more == 1 else 'tests'} with smaller peaks")
    folder = report_folder(terminalreporter.config)
    if folder is not None:
        terminalreporter.write_line(f"Captures and pages: {folder}")
