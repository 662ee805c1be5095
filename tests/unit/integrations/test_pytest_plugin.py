"""The pytest plugin: memory limits, leaks, fixtures, the report folder and the summary. Each test project runs in this
process."""

import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401  # pytester would import it again in each test

from legroom.integrations.memory_test import file_name

pytest_plugins = ["pytester"]

PLUGIN = "legroom.integrations.pytest_plugin"
NO_REWRITE = ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # the plugin may be imported already
USAGE = """
    import pytest, torch

    def use(mebibytes):
        return torch.zeros(mebibytes << 20, dtype=torch.uint8, device="cuda")
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A test project that loads only this plugin. An installed copy of the plugin would be the same module under
    another name."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester


def run(project: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    project.makepyfile(test_memory=textwrap.dedent(USAGE) + textwrap.dedent(source))
    return project.runpytest_inprocess(
        "-p", PLUGIN, "-p", "no:cacheprovider", "--strict-markers", *NO_REWRITE, *options
    )


# --- the limit


def test_a_test_that_needs_more_memory_fails_with_the_needed_memory_and_the_largest_lines(
    project: pytest.Pytester,
) -> None:
    result = run(
        project,
        """
        @pytest.mark.gpu_memory("64 MiB")
        def test_large():
            first = torch.zeros(20 << 20, dtype=torch.uint8, device="cuda")
            second = torch.zeros(16 << 20, dtype=torch.uint8, device="cuda")
            third = torch.zeros(12 << 20, dtype=torch.uint8, device="cuda")
            fourth = torch.zeros(1 << 10, dtype=torch.uint8, device="cuda")
            too_large = use(40)
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "The test needs at least 90.0 MiB of GPU memory, but only 64.0 MiB is allowed. "
            "Tried to allocate 40.0 MiB at test_memory.py:4.",
            "Largest lines:",
            "     20.0 MiB  input  test_memory.py:8   first = torch.zeros(20 << 20, dtype=torch.uint8, device=*",
            "     16.0 MiB  input  test_memory.py:9   second = torch.zeros(16 << 20, dtype=torch.uint8, device=*",
            "     12.0 MiB  input  test_memory.py:10  third = torch.zeros(12 << 20, dtype=torch.uint8, device=*",
            "=*",
        ],
        consecutive=True,
    )
    assert "Traceback" not in result.stdout.str()


def test_a_test_that_fits_passes_and_the_summary_has_its_peak(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        @pytest.mark.gpu_memory("64 MiB")
        def test_small():
            use(20)
            use(30)
        """,
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*= GPU memory =*",
            "30.0 MiB of 64.0 MiB  test_memory.py::test_small",
            "*30.0 MiB*test_memory.py:4  return torch.zeros(*",
        ]
    )


def test_a_line_with_several_categories_is_one_line(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        @pytest.mark.gpu_memory("64 MiB")
        def test_layers():
            layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()
            layers(torch.randn(4096, 64, device="cuda")).sum().backward()
        """,
    )
    result.assert_outcomes(passed=1)
    assert result.stdout.str().count("layers(torch.randn") == 1


def test_code_that_recovers_from_the_error_passes(project: pytest.Pytester) -> None:
    run(
        project,
        """
        @pytest.mark.gpu_memory("64 MiB")
        def test_recovers():
            with pytest.raises(torch.OutOfMemoryError):
                use(100)
            use(10)
        """,
    ).assert_outcomes(passed=1)


def test_memory_of_fixtures_counts(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        @pytest.fixture
        def weights():
            return use(50)

        @pytest.mark.gpu_memory("64 MiB")
        def test_with_weights(weights):
            use(20)

        @pytest.fixture
        def too_large():
            return use(100)

        @pytest.mark.gpu_memory("64 MiB")
        def test_fixture(too_large):
            pass
        """,
    )
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines_random(
        ["*needs at least 70.0 MiB*64.0 MiB is allowed*", "*needs at least 100.0 MiB*64.0 MiB is allowed*"]
    )


def test_other_failures_are_unchanged(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        @pytest.mark.gpu_memory("64 MiB")
        def test_wrong():
            assert use(1).sum().item() == 7
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *assert 0 == 7"])


def test_the_limit_of_a_current_gpu_excludes_earlier_memory_and_ends_with_the_test(
    project: pytest.Pytester,
) -> None:
    result = run(
        project,
        """
        import legroom

        @pytest.fixture(scope="module", autouse=True)
        def gpu():
            with legroom.VirtualGPU("256MiB"):
                yield use(100)

        def test_before():
            pass

        @pytest.mark.gpu_memory("64 MiB")
        def test_fits():
            use(60)

        @pytest.mark.gpu_memory("64 MiB")
        def test_does_not_fit():
            use(80)

        def test_without_limit():
            use(120)
        """,
    )
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines_random(
        ["*needs at least 80.0 MiB*64.0 MiB is allowed*", "60.0 MiB of 64.0 MiB  test_memory.py::test_fits"]
    )


# --- leaks


def test_memory_that_survives_the_test_is_an_error_that_names_line_and_variable(
    project: pytest.Pytester,
) -> None:
    result = run(
        project,
        """
        KEPT = []

        @pytest.mark.no_leaks
        def test_leaks():
            for _ in range(4):
                KEPT.append(use(2))
        """,
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "8.0 MiB of GPU memory is still allocated after the test.",
            "Allocated at:",
            "*8.0 MiB*test_memory.py:4  return torch.zeros(*",
            "Retained by:",
            "  KEPT (list, 4 items)*test_memory.py*",
        ]
    )


def test_a_graph_that_survives_is_found_through_its_loss(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        class Trainer:
            history = []

        @pytest.mark.no_leaks
        def test_leaks():
            model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).cuda()
            for _ in range(3):
                Trainer.history.append(model(torch.randn(256, 64, device="cuda")).square().mean())
        """,
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["Retained by:", "*Trainer.history (list, 3 items)*"])


def test_the_holder_of_a_view_is_found_if_only_the_view_retains_the_memory(
    project: pytest.Pytester,
) -> None:
    result = run(
        project,
        """
        OUTPUTS, FIRST = [], {}

        @pytest.mark.no_leaks
        def test_output_of_a_linear_layer():
            model = torch.nn.Linear(64, 64).cuda()
            OUTPUTS.append(model(torch.randn(4, 16, 64, device="cuda")))

        @pytest.mark.no_leaks
        def test_view():
            FIRST["row"] = use(2)[:1]
        """,
    )
    result.assert_outcomes(passed=2, errors=2)
    result.stdout.fnmatch_lines(
        ["Retained by:", "  OUTPUTS (list, 1 item)*", "Retained by:", "  FIRST (dict, 1 item)*"]
    )


def test_a_test_that_frees_its_memory_has_no_leak(project: pytest.Pytester) -> None:
    run(
        project,
        """
        @pytest.fixture
        def model():
            return torch.nn.Linear(64, 64).cuda()

        @pytest.fixture(scope="module")
        def table():
            return use(4)

        @pytest.mark.no_leaks
        def test_trains(model, table):
            optimizer = torch.optim.AdamW(model.parameters())
            model(torch.randn(8, 64, device="cuda")).sum().backward()
            optimizer.step()

        @pytest.mark.no_leaks
        def test_cycle():
            items = [use(2)]
            items.append(items)
        """,
    ).assert_outcomes(passed=2)


def test_a_failed_test_is_not_searched_for_leaks(project: pytest.Pytester) -> None:
    run(
        project,
        """
        KEPT = []

        @pytest.mark.no_leaks
        def test_fails():
            KEPT.append(use(2))
            assert False
        """,
    ).assert_outcomes(failed=1)


# --- fixtures


def test_the_virtual_gpu_has_the_default_size_a_parameter_or_the_size_of_the_mark(
    project: pytest.Pytester,
) -> None:
    run(
        project,
        """
        def test_default(virtual_gpu):
            assert torch.cuda.mem_get_info()[1] == 8 << 30
            assert use(1).is_cuda

        @pytest.mark.parametrize("virtual_gpu", ["64MiB", "t4"], indirect=True)
        def test_parameter(virtual_gpu):
            name = virtual_gpu.devices[0].spec.name
            assert name in ("64MiB", "t4")
            with pytest.raises(torch.OutOfMemoryError):
                virtual_gpu.fail_allocation()
                use(1)

        @pytest.mark.gpu_memory("64MiB,64MiB")
        def test_mark(virtual_gpu):
            assert torch.cuda.device_count() == len(virtual_gpu.devices) == 2

        def test_after():
            assert not torch.cuda.is_available()
        """,
    ).assert_outcomes(passed=5)


def test_a_project_may_have_its_own_virtual_gpu(project: pytest.Pytester) -> None:
    run(
        project,
        """
        class TestOther:
            @pytest.fixture
            def virtual_gpu(self):
                return "other"

            def test_own(self, virtual_gpu):
                assert virtual_gpu == "other"
                assert not torch.cuda.is_available()

        class TestExtended:
            @pytest.fixture
            def virtual_gpu(self, virtual_gpu):
                return [virtual_gpu, use(1)]

            def test_extended(self, virtual_gpu):
                assert virtual_gpu[1].is_cuda
        """,
    ).assert_outcomes(passed=2)


def test_the_recording_has_the_memory_of_its_block(project: pytest.Pytester) -> None:
    run(
        project,
        """
        def test_block(virtual_gpu, recording):
            with recording:
                use(3)
            assert recording.peak == 3 << 20
        """,
    ).assert_outcomes(passed=1)


# --- the report


def test_the_report_folder_has_a_capture_and_a_page_of_each_marked_test(project: pytest.Pytester) -> None:
    source = """
        @pytest.mark.gpu_memory("64 MiB")
        @pytest.mark.parametrize("size", [1, 2])
        def test_one(size):
            use(size)

        @pytest.mark.no_leaks
        def test_two():
            use(1)

        def test_unmarked():
            pass
    """
    for _ in range(2):  # the second run overwrites the files of the first
        result = run(project, source, "--legroom-report", "memory")
        result.assert_outcomes(passed=4)
        result.stdout.fnmatch_lines(["Captures and pages: *memory"])
        names = sorted(path.name for path in Path("memory").iterdir())
        assert [Path(name).suffix for name in names] == [".html", ".legroom"] * 3
        assert "test_memory.py-test_two.legroom" in names
    assert "test_memory.py:4" in Path("memory/test_memory.py-test_two.html").read_text()


def test_file_names_of_parameters_differ() -> None:
    assert file_name("a/test_x.py::T::test_y") == "a-test_x.py-T-test_y"
    assert file_name("test_x.py::test_y[a/b]") != file_name("test_x.py::test_y[a:b]")


def test_a_report_folder_that_is_a_file_is_a_usage_error(project: pytest.Pytester) -> None:
    Path("taken").touch()
    result = run(project, "def test(): pass", "--legroom-report", "taken")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --legroom-report: cannot create *taken (File exists). Choose another directory."]
    )


# --- bad input


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ('gpu_memory("6 GBB")', "`6 GBB` is not a *"),
        ("gpu_memory()", 'The marker `gpu_memory` requires one size: `@pytest.mark.gpu_memory("6 GiB")`.'),
        ("gpu_memory(2.5)", "The GPU must be given as a string such as `8GiB` or `t4`, not float."),
    ],
)
def test_an_invalid_size_is_reported_in_one_line(project: pytest.Pytester, mark: str, message: str) -> None:
    result = run(project, f"@pytest.mark.{mark}\ndef test_marked(): pass\n\ndef test_other(): pass\n")
    result.assert_outcomes(errors=1, passed=1)
    errors = result.stdout.str().partition("ERROR at setup")[2].partition("=====")[0].splitlines()[1:]
    (line,) = filter(None, errors)
    pytest.LineMatcher([line]).fnmatch_lines([message])


def test_a_marked_test_without_gpu_memory_has_a_warning_of_one_line(project: pytest.Pytester) -> None:
    result = run(project, '@pytest.mark.gpu_memory("6 GiB")\ndef test_on_the_cpu(): torch.zeros(100)')
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "*test_on_the_cpu used no GPU memory, so Legroom's pytest markers have no effect. Move the tensors of the test to `cuda`."
        ]
    )


def test_a_size_in_the_mark_and_in_a_parameter_is_reported_in_one_line(project: pytest.Pytester) -> None:
    result = run(
        project,
        """
        @pytest.mark.gpu_memory("1GiB")
        @pytest.mark.parametrize("virtual_gpu", ["2GiB"], indirect=True)
        def test_two_sizes(virtual_gpu): pass
        """,
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["The test has the marker `gpu_memory` and a parameter*Specify the size only once."]
    )


# --- other plugins, start


def test_the_results_of_xdist_workers_are_in_the_summary(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        import json

        class Worker:
            def pytest_report_teststatus(self, report, config):
                # pytest-xdist sends a report to its controller in this form.
                data = config.hook.pytest_report_to_serializable(config=config, report=report)
                sent = config.hook.pytest_report_from_serializable(config=config, data=json.loads(json.dumps(data)))
                report.__dict__ = sent.__dict__

        def pytest_configure(config):
            config.pluginmanager.register(Worker())
        """
    )
    result = run(
        project,
        """
        @pytest.mark.gpu_memory("64 MiB")
        def test_small():
            use(20)
        """,
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["20.0 MiB of 64.0 MiB  test_memory.py::test_small"])


def test_the_plugin_can_be_disabled_by_the_name_of_its_entry_point() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert pyproject["project"]["entry-points"]["pytest11"] == {"legroom": PLUGIN}


@pytest.mark.slow
def test_pytest_starts_without_importing_torch_or_other_modules_of_legroom() -> None:
    program = f"import sys, pytest, {PLUGIN}; print(*sorted(n for n in sys.modules if n.startswith(('legroom', 'torch', 'rich'))))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert loaded.split() == ["legroom", "legroom.integrations", PLUGIN]
