"""The command line: `main(argv) -> int` parses the arguments, runs the command and returns the exit code.

For invalid input, one line is printed to stderr, and the exit code is 2. Commands import torch only when they run, so
`--help`, `--version` and usage errors are fast.
"""

import atexit
import contextlib
import errno
import gc
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, cast

import typer
import typer.core

from legroom import __version__
from legroom.cli.diff import diff
from legroom.cli.doctor import doctor
from legroom.cli.estimate import estimate
from legroom.cli.explain import explain
from legroom.cli.launch import launch
from legroom.cli.lint import lint
from legroom.cli.monitor import monitor
from legroom.cli.options import Command, ScriptCommand
from legroom.cli.report import report
from legroom.cli.run import run
from legroom.cli.tune import tune
from legroom.errors import LegroomError, OutputError
from legroom.log import say


class _Legroom(typer.core.TyperGroup):
    """The command group, whose help omits `--install-completion` and `--show-completion`.

    If standard output is a closed pipe, typer exits without a message. Therefore the error is raised as an
    `OutputError`, which typer does not catch.
    """

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _closed_pipe_as_output_error():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _closed_pipe_as_output_error():
            return super().invoke(ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)
        for parameter in parameters:
            if parameter.name in ("install_completion", "show_completion"):
                parameter.hidden = True
        return parameters


@contextlib.contextmanager
def _closed_pipe_as_output_error() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        if error.filename is not None:
            raise
        raise OutputError.from_error(error) from None


app = typer.Typer(
    name="legroom",
    cls=_Legroom,
    help="Make PyTorch training fit into GPU memory.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# Newer versions of typer contain a copy of click, so `click.ClickException` is reached through a public name of typer.
_CommandLineError = cast("type[Exception]", typer.BadParameter.__mro__[2])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Without `argv`, the arguments are those of the process. In this case, `legroom run` prints its report at
    interpreter exit, after the script's threads and exit handlers have finished. With `argv`, everything is printed
    before the function returns.
    """
    try:
        return _run_command(argv)
    except Exception as error:
        traceback.print_exc()
        return _usage_error(
            f"Internal error: {type(error).__name__}. This is a bug in Legroom. Report it with the lines above."
        )


def _run_command(argv: Sequence[str] | None) -> int:
    at_exit: Callable[[Callable[[], None]], object] | None = atexit.register if argv is None else None
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None and arguments[:1] != ["run"]:
        # At exit, Python searches all objects for cycles, which takes half a second after an import of torch. A script
        # that runs in this process exits as usual.
        atexit.register(gc.freeze)
    if sys.stderr is None:  # closed: without a stream, messages would be printed to standard output
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        if sys.stdout is None and arguments[:1] not in (["run"], ["launch"]):  # both report on stderr
            raise OutputError.from_error()
        code = app(args=arguments, prog_name="legroom", standalone_mode=False, obj=at_exit) or 0
        return code if _flush_stdout(of_script=arguments[:1] == ["run"]) else _UNFLUSHED
    except OutputError as error:
        _discard_stdout()
        return _usage_error(str(error))
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
            raise
        _discard_stdout()
        return _usage_error(str(OutputError.from_error(error)))
    except LegroomError as error:
        return _usage_error(str(error))
    except _CommandLineError as error:
        message = cast(typer.BadParameter, error).format_message().rstrip(".")
        end = "" if message.endswith("?") else "."
        return _usage_error(f"{message}{end} See `{_help_command(error)}`.")
    except typer.Abort:
        return 130


_UNFLUSHED = 120
"""The exit code of Python if the last output of a script cannot be written."""


def _flush_stdout(*, of_script: bool) -> bool:
    """Return False if the output of the user's script cannot be written. If the output of Legroom itself cannot be
    written, the error is raised.
    """
    try:
        if sys.stdout is not None and not (of_script and getattr(sys.stdout, "closed", False)):
            sys.stdout.flush()
    except OSError as error:
        if not of_script or error.errno not in _OUTPUT_ERRORS:
            raise
        _discard_stdout()
        say(str(OutputError.from_error(error)))
        return False
    return True


_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EPIPE, errno.EBADF, errno.EIO)
"""Values of `errno` for a failed write to standard output.

If the exception contains a file name, the write to that file failed, not the write to standard output.
"""


def _discard_stdout() -> None:
    """Redirect standard output, so that the interpreter does not report the same error again when it exits."""
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        with contextlib.suppress(OSError, ValueError):
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, sys.stdout.fileno())


def _usage_error(message: str) -> int:
    say(message)
    return 2


def _help_command(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context is not None else 'legroom'} --help"


def _print_version(requested: bool) -> None:
    if requested:
        print(f"legroom {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _legroom(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command(
    "run",
    cls=ScriptCommand,
    short_help="Run a script and record its memory use.",
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)(run)
app.command(
    "estimate",
    cls=ScriptCommand,
    short_help="Predict whether a script fits on a GPU.",
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)(estimate)
app.command(
    "launch",
    cls=ScriptCommand,
    short_help="Run a script on several GPUs or machines.",
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)(launch)
app.command("monitor", cls=Command, short_help="Show a live view of GPUs, processes and runs.")(monitor)
app.command("report", cls=Command, short_help="Show the report for a recorded run.")(report)
app.command("diff", cls=Command, short_help="Show what grew between two recorded runs.")(diff)
app.command("lint", cls=Command, short_help="Find and fix memory bugs in Python code.")(lint)
app.command("explain", cls=Command, short_help="Explain a CUDA or PyTorch error.")(explain)
app.command("doctor", cls=Command, short_help="Check the driver, CUDA and PyTorch installation.")(doctor)
app.command(
    "tune",
    cls=Command,
    short_help="Search for the best hyperparameters that fit in memory.",
)(tune)
