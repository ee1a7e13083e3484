"""The command line: its commands, and how each of them ends. Nothing heavy is imported until a command runs."""

from __future__ import annotations

import errno
import signal
import sys
import time
from collections.abc import Callable
from itertools import chain
from typing import Annotated, NoReturn

import typer

from ..errors import BadInput, ManyhandsError, RankFailed
from ..record.untrusted import plain
from . import BAD_INPUT, DONE, FAILED, INTERRUPTED
from .diagnose import diagnose
from .doctor import doctor
from .help import NamedArguments, grouped
from .lab import lab
from .look import report, runs, strategies, tasks, watch
from .plan import plan
from .run import run
from .serve import serve
from .studies import chaos, compare
from .train import evaluate, train
from .tune import tune
from .verify import verify

GROUPS: dict[str, tuple[Callable[..., None], ...]] = {  # the order of --help
    "Train and compare": (train, compare, plan, run, evaluate),
    "Why is it slow?": (diagnose, doctor, tune),
    "Is it right?": (verify, chaos, lab),
    "Look at results": (report, serve, runs, watch),
    "What there is": (strategies, tasks),
}
SETTINGS: dict[Callable[..., None], dict[str, bool]] = {
    verify: {"ignore_unknown_options": True},  # TASK may be a script with options of its own
    run: {"allow_interspersed_args": False},  # what follows SCRIPT is the script's own
}

app = typer.Typer(
    name="manyhands",
    cls=grouped(GROUPS),
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in chain.from_iterable(GROUPS.values()):
    app.command(cls=NamedArguments, context_settings=SETTINGS.get(command))(command)

TOLD_SECONDS = 2.0

# The base of click's complaints. Newer versions of typer carry click inside them, under a private name of theirs; what
# they export, BadParameter, leads to it in all of them.
UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]


@app.callback(invoke_without_command=True)
def _top(context: typer.Context, version: Annotated[bool, typer.Option("--version")] = False) -> None:
    if version:
        from .. import __version__

        print(__version__)
        raise typer.Exit(DONE)
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> NoReturn:
    """Run a command; every refusal is one line on standard error."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = app(standalone_mode=False, prog_name="manyhands")
    except typer.Exit as leaving:
        code = leaving.exit_code
    except UsageProblem as problem:
        code = _complain(" ".join(problem.format_message().split()), BAD_INPUT)  # type: ignore[attr-defined]
    except BadInput as problem:
        _leave_it_to_another(problem)
        code = _complain(str(problem), BAD_INPUT)
    except ManyhandsError as problem:
        _leave_it_to_another(problem)
        if isinstance(problem, RankFailed) and problem.traceback:
            print(problem.traceback.rstrip(), file=sys.stderr)
        code = _complain(str(problem), FAILED)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        code = FAILED
    except OSError as problem:
        if problem.errno != errno.ENOSPC or problem.filename is not None:
            raise
        code = _complain(f"the output could not be written: {problem}", FAILED)
    if code == INTERRUPTED:  # raised here, or turned into an exit code by typer
        _complain("interrupted", code)
    sys.exit(code if isinstance(code, int) else DONE)


def _leave_it_to_another(problem: ManyhandsError) -> None:
    """Where another of torchrun's processes reports it: torchrun ends that one too as soon as this one has gone."""
    if problem.told:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(TOLD_SECONDS)
        sys.exit(BAD_INPUT if isinstance(problem, BadInput) else FAILED)


def _complain(message: str, code: int) -> int:
    print(f"manyhands: {plain(message)}", file=sys.stderr)
    return code


def _terminated(number: int, frame: object) -> None:
    raise KeyboardInterrupt
