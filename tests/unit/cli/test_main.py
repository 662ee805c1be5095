"""The command line: version, usage errors and option parsing."""

import gc
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest
import typer

import legroom
from legroom.cli import app, main
from legroom.cli.options import ScriptCommand


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"legroom {legroom.__version__}\n"


def test_an_internal_error_has_exit_code_2(monkeypatch, capsys):
    def fail(**options):
        raise KeyError("x")

    monkeypatch.setattr("legroom.cli.app", fail)
    assert main(["doctor"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1] == (
        "legroom: Internal error: KeyError. This is a bug in Legroom. Report it with the lines above."
    )


@pytest.mark.parametrize(
    "words", [["--version"], ["--help"], ["explain", "LG700"], ["explain", "--format", "json", "LG700"]]
)
def test_a_full_disk_or_closed_pipe_at_stdout_is_reported_in_one_line(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", open("/dev/full", "w"))  # noqa: SIM115
    assert main(words) == 2
    assert capsys.readouterr().err == (
        "legroom: Cannot write to standard output: the disk is full. Free some space, or use another disk.\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        ["run", "--help"],
        ["explain", "--format", "json", "LG700"],
        ["lint", "--rules"],
    ],
)
def test_a_closed_pipe_at_stdout_is_reported_in_one_line(words, monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(sys, "stdout", open(write, "w"))  # noqa: SIM115
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err == "legroom: Cannot write to standard output: it is closed. Redirect the output to a file.\n"


@pytest.mark.slow
def test_a_script_whose_output_cannot_be_written_exits_as_under_python(tmp_path):
    script = tmp_path / "hello.py"
    script.write_text("print('hello')")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        expected = subprocess.run(
            [sys.executable, script], stdout=full, stderr=subprocess.DEVNULL, env=environment
        )
        done = subprocess.run(
            [sys.executable, "-m", "legroom", "run", script],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
    assert done.returncode == expected.returncode == 120
    assert done.stderr == (
        "legroom: Cannot write to standard output: the disk is full. Free some space, or use another disk.\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        [],
        ["run", "--help"],
        ["explain", "LG700"],
        ["doctor"],
        ["run", "--format", "json", "x.py"],
    ],
)
def test_a_closed_stdout_is_reported_in_one_line(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err == "legroom: Cannot write to standard output: it is closed. Redirect the output to a file.\n"


@pytest.mark.parametrize("words", [["explain", "-"], ["lint", "-"]])
def test_a_closed_stdin_is_reported_in_one_line(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(words) == 2
    assert capsys.readouterr().err == (
        "legroom: Standard input is closed. Pass the path to a file instead of `-`.\n"
    )


def test_messages_do_not_go_to_stdout_if_stderr_is_closed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["report", "missing.legroom"]) == 2
    assert capsys.readouterr().out == ""


def test_the_installed_package_has_the_same_version():
    try:
        installed = version("legroom")
    except PackageNotFoundError:
        pytest.skip("legroom is imported from its sources and not installed")
    assert installed == legroom.__version__


def test_help_is_shown_without_a_command(capsys):
    assert main([]) == 0
    assert "run" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["report", "--help"]])
def test_help_shows_the_usage(capsys, words):
    assert main(words) == 0
    assert "Usage: legroom" in capsys.readouterr().out


def test_each_command_has_a_short_help_that_fits(capsys):
    main(["--help"])
    verbs = capsys.readouterr().out.partition("Commands:")[2].strip().splitlines()
    assert len(verbs) >= 8
    assert all(line.endswith((".", "?")) and not line.endswith("...") for line in verbs)


def test_python_m_legroom_runs_the_command():
    done = subprocess.run([sys.executable, "-m", "legroom", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"legroom {legroom.__version__}\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run"], "No script given. Example: `legroom run train.py`."),
        (["run", "missing.py"], "Script `missing.py` not found. Check the path, or run a module with `-m`."),
        (["run", "-m", "no_such_module_here"], "No module named `no_such_module_here` in "),
        (
            ["run", "--gpu", "8 bananas", "x.py"],
            "`8 bananas` is not a valid GPU. Use a size (`8GiB`, `8GiB:sm90`) or a name",
        ),
        (["run", "--gpu", "0", "x.py"], "`0` is not a valid GPU."),
        (["run", "--gpu", "8GiB,", "x.py"], "An empty string is not a valid GPU"),
        (["run", "--nonsense", "x.py"], "No such option: --nonsense"),
        (["run", "--format", "xml", "x.py"], "Invalid value for '--format'"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["estimat"], "No such command 'estimat'. Did you mean 'estimate'? See `legroom --help`."),
        (["report", "missing.legroom"], "missing.legroom does not exist. Check the path."),
    ],
)
def test_invalid_input_prints_one_line_and_exits_with_2(capsys, monkeypatch, tmp_path, words, sentence):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"legroom: {sentence}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "ended"),
    [
        (["-m", "pkg", "--force"], ["-m", "pkg", "--", "--force"]),
        (["-mpkg", "--gpu", "x"], ["-mpkg", "--", "--gpu", "x"]),
        (["--gpu", "8GiB", "-m", "pkg", "-m", "x"], ["--gpu", "8GiB", "-m", "pkg", "--", "-m", "x"]),
        (["--gpu=8GiB", "--force", "-m", "pkg"], ["--gpu=8GiB", "--force", "-m", "pkg", "--"]),
        (["-o", "-m", "train.py", "-m", "x"], ["-o", "-m", "train.py", "-m", "x"]),
        (["train.py", "-m", "x"], ["train.py", "-m", "x"]),
        (["--", "train.py", "-m", "x"], ["--", "train.py", "-m", "x"]),
    ],
)
def test_options_end_after_the_module(words, ended):
    assert mark_script("run", words) == ended


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["--spill", "train.py", "--spill"], ["--spill=all", "train.py", "--spill"]),
        (["--spill=4GiB", "train.py"], ["--spill=4GiB", "train.py"]),
        (
            ["--gpu", "8GiB", "--spill", "-m", "pkg", "--spill"],
            ["--gpu", "8GiB", "--spill=all", "-m", "pkg", "--", "--spill"],
        ),
        (["-o", "--spill", "train.py"], ["-o", "--spill", "train.py"]),
    ],
)
def test_an_omitted_optional_value_is_added(words, given):
    assert mark_script("run", words) == given


@pytest.mark.parametrize("command", ["run", "estimate", "launch"])
def test_options_keep_values_that_look_like_options(command):
    """An option whose value looks like `-m` must not end the options."""
    with_values = [
        option
        for option in script_command(command).params
        if isinstance(option, typer.core.TyperOption) and not option.is_flag and option.opts != ["-m"]
    ]
    assert with_values
    for option in with_values:
        if option.opts != ["--spill"]:
            words = [option.opts[0], "-m", "train.py"]
            assert mark_script(command, words) == words


def script_command(name):
    command = typer.main.get_command(app).commands[name]
    assert isinstance(command, ScriptCommand)
    return command


def mark_script(name, words):
    command = script_command(name)
    return command.expand(typer.Context(command), words)


@pytest.mark.slow
def test_a_usage_error_does_not_load_torch():
    program = "import sys; from legroom.cli import main; main(['run', '--gpu', 'x', 'y.py']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(("command", "is_fast"), [("doctor", True), ("run", False)])
def test_exit_is_fast_except_after_a_script_that_ran_in_this_process(monkeypatch, command, is_fast):
    registered: list[object] = []
    monkeypatch.setattr("atexit.register", registered.append)
    monkeypatch.setattr("sys.argv", ["legroom", command, "--help"])
    assert main() == 0
    assert (gc.freeze in registered) == is_fast
