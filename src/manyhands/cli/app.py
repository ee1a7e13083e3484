"""The command line: its commands, and how each of them ends. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, NoReturn

import typer

from ..errors import BadInput, ManyhandsError, RankFailed
from ..record.untrusted import plain
from . import BAD_INPUT, DONE, FAILED, INTERRUPTED
from .diagnose import diagnose
from .doctor import doctor
from .look import report, runs, strategies, tasks, watch
from .run import run
from .studies import chaos, compare
from .train import evaluate, train
from .tune import tune
from .verify import verify

app = typer.Typer(
    name="manyhands",
    help="Train a PyTorch model under every kind of parallel strategy, see where the time goes, and compare.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (
    train,
    compare,
    diagnose,
    evaluate,
    report,
    runs,
    watch,
    doctor,
    tune,
    chaos,
    tasks,
    strategies,
):  # in the order of --help
    app.command()(command)
app.command(context_settings={"ignore_unknown_options": True})(verify)  # TASK may be a script with options of its own
app.command(context_settings={"allow_interspersed_args": False})(run)  # what follows SCRIPT is the script's own

# The base of click's complaints. Newer versions of typer carry click inside them, under a private name of theirs; what
# they export, BadParameter, leads to it in all of them.
UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    if version:
        from .. import __version__

        print(__version__)
        raise typer.Exit(DONE)


def main() -> NoReturn:
    """Run a command; every refusal is one line on standard error."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = app(standalone_mode=False)
    except typer.Exit as leaving:
        code = leaving.exit_code
    except UsageProblem as problem:
        code = _complain(" ".join(problem.format_message().split()), BAD_INPUT)  # type: ignore[attr-defined]
    except BadInput as problem:
        code = _complain(str(problem), BAD_INPUT)
    except ManyhandsError as problem:
        if isinstance(problem, RankFailed) and problem.traceback:
            print(problem.traceback.rstrip(), file=sys.stderr)
        code = _complain(str(problem), FAILED)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        code = FAILED
    if code == INTERRUPTED:  # raised here, or turned into an exit code by typer
        _complain("interrupted", code)
    sys.exit(code if isinstance(code, int) else DONE)


def _complain(message: str, code: int) -> int:
    print(f"manyhands: {plain(message)}", file=sys.stderr)
    return code


def _terminated(number: int, frame: object) -> None:
    raise KeyboardInterrupt
