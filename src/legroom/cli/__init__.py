"""The command line: `main(argv) -> int` parses, calls, prints and gives the exit code.

A verb is one small file here; what it does lives below. Bad input ends in one sentence on stderr and exit code 2.
Verbs import torch only when they run, so that `--help`, `--version` and a mistyped option answer at once.
"""

import atexit
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, cast

import typer

from legroom.cli.doctor import doctor
from legroom.cli.estimate import estimate
from legroom.cli.explain import explain
from legroom.cli.launch import launch
from legroom.cli.lint import lint
from legroom.cli.options import Command
from legroom.cli.report import report
from legroom.cli.run import ScriptCommand, run
from legroom.cli.tune import tune
from legroom.errors import LegroomError
from legroom.log import say

app = typer.Typer(
    name="legroom",
    help="Makes PyTorch training fit: who holds the memory, where a run fails, on a GPU of any size.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# Newer versions of typer carry their own copy of click: its errors are reached through typer's public names.
_BadCommandLine = cast("type[Exception]", typer.BadParameter.__mro__[2])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    As the program itself (`argv` is None), a run's closing words wait until the script's threads and exit handlers are
    done, as late as the interpreter allows. Called with `argv`, all is done and printed on return.
    """
    at_exit: Callable[[Callable[[], None]], object] | None = atexit.register if argv is None else None
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return app(args=arguments, prog_name="legroom", standalone_mode=False, obj=at_exit) or 0
    except LegroomError as error:
        return _refuse(str(error))
    except _BadCommandLine as error:
        return _refuse(
            f"{cast(typer.BadParameter, error).format_message().rstrip('.')}: see {_help_of(error)}"
        )
    except typer.Abort:
        return 130


def _refuse(sentence: str) -> int:
    say(sentence)
    return 2


def _help_of(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context is not None else 'legroom'} --help"


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"legroom {version('legroom')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _legroom(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command(
    "run",
    cls=ScriptCommand,
    short_help="Run a script, watch its memory and say who held it.",
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)(run)
app.command(
    "estimate",
    cls=ScriptCommand,
    short_help="Does a script fit a GPU? Its peak and its largest batch.",
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)(estimate)
app.command(
    "launch",
    cls=ScriptCommand,
    short_help="Start a script once per GPU, as ranks that work together.",
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)(launch)
app.command("report", cls=Command, short_help="What a capture holds: the peak or the failure, once more.")(
    report
)
app.command("lint", cls=Command, short_help="Find memory bugs in code, and mend them.")(lint)
app.command("explain", cls=Command, short_help="What an error means, its causes and the fix.")(explain)
app.command("doctor", cls=Command, short_help="Is this driver, CUDA and torch set-up sound?")(doctor)
app.command("tune", cls=Command, short_help="Search hyperparameters and lose no trial to memory.")(tune)
