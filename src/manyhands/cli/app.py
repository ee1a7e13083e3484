"""The command line. Nothing heavy is imported until a command needs it, so that --help answers at once."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ..errors import BadInput, ManyhandsError, RankFailed
from ..record.untrusted import plain
from .options import (
    AsJson,
    BatchSize,
    CheckpointEvery,
    Device,
    MaxRestarts,
    MaxSteps,
    OnDeath,
    Quiet,
    Ranks,
    Resume,
    RunDir,
    Seed,
    StallSeconds,
    Target,
    TaskArgument,
    with_fit_options,
)

app = typer.Typer(
    name="manyhands",
    help="Train a PyTorch model under every kind of parallel strategy, see where the time goes, and compare.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

UsageProblem: type[Exception] = typer.BadParameter.__mro__[
    2
]  # click's base of complaints, which typer carries under changing names
DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


@app.command()
@with_fit_options
def train(
    task: TaskArgument = "glyphs",
    strategy: Annotated[str, typer.Argument(metavar="STRATEGY", help="ddp, pipeline:chunks=8, ...")] = "single",
    run_dir: RunDir = None,
    resume: Resume = False,
    checkpoint_every: CheckpointEvery = None,
    max_restarts: MaxRestarts = 0,
    stall_seconds: StallSeconds = None,
    on_death: OnDeath = "end",
    sample: Annotated[int | None, typer.Option(help="after training, let the model write this many symbols")] = None,
    log: Annotated[str | None, typer.Option(help="also write tensorboard,csv into the run's folder")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **chosen: Any,
) -> None:
    """Train a task under one strategy and say where the time went."""
    from ..record.exports import check_logs, write_logs
    from ..training.fit import fit
    from . import terminal

    work = _task(task, chosen.pop("batch_size"), chosen.pop("seed"))
    if sample is not None and work.sample is None:
        raise BadInput(f"--sample: the task {work.name or task} cannot write samples; shakespeare can")
    logs = check_logs(log)
    folder = run_dir or _new_folder(work.name, strategy)
    try:
        run = fit(
            work,
            strategy,
            run_dir=folder,
            resume=resume,
            checkpoint_every=checkpoint_every,
            max_restarts=max_restarts,
            stall_seconds=stall_seconds,
            on_death=on_death,
            progress=not quiet,
            command=_command(),
            source=_source(task),
            **chosen,
        )
    except RankFailed as failure:
        if as_json and failure.run is not None:
            print(failure.run.to_json())
        raise
    if int(os.environ.get("RANK", "0")) != 0:
        return  # torchrun started several of us; rank 0 speaks
    write_logs(run, folder, logs)
    if as_json:
        print(run.to_json())
    else:
        terminal.show_run(run)
    if sample is not None:
        text = terminal.write_sample(work, run, sample)
        print(text, file=sys.stderr if as_json else sys.stdout)


@app.command()
@with_fit_options
def compare(
    task: TaskArgument = "glyphs",
    strategies: Annotated[
        list[str] | None, typer.Argument(metavar="STRATEGY", help="default: a sensible handful")
    ] = None,
    rounds: Annotated[int, typer.Option(help="interleaved slices that measure speed")] = 3,
    target: Target = None,
    time_limit: Annotated[float | None, typer.Option(help="seconds each strategy may take")] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="where to keep runs and page (default: runs/<date>-<task>-compare)")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **chosen: Any,
) -> None:
    """Train a task under several strategies: a table, and a page with charts."""
    import json

    from ..pages import report as write_report
    from ..studies.compare import compare as compare_runs
    from . import terminal

    work = _task(task, chosen.pop("batch_size"), chosen.pop("seed"))
    folder = run_dir or _new_folder(work.name, "compare")
    runs = compare_runs(
        work,
        strategies or None,
        rounds=rounds,
        time_limit=time_limit,
        run_dir=folder,
        progress=not quiet,
        command=_command(),
        source=_source(task),
        **chosen,
    )
    page = write_report(runs, folder / "report.html", target=target)
    if as_json:
        print(json.dumps({"runs": [run.record() for run in runs], "report": str(page)}, indent=1))
    else:
        terminal.show_comparison(runs, page, target)
    if runs.interrupted:
        raise KeyboardInterrupt
    if any(run.status == "failed" for run in runs):
        raise typer.Exit(FAILED)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    task: Annotated[str | None, typer.Option(help="the task, instead of the one the run's record names")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Evaluate a finished run's weights on its task's test set."""
    import json

    from ..record.run import Run, weights_digest
    from ..training.evaluate import evaluate as evaluate_weights
    from ..world.devices import resolve_devices
    from . import terminal

    stored = Run.load(run)
    if stored.weights is None or stored.weights_sha256 is None:
        raise BadInput(f"{run} holds no weights (status: {stored.status}); only a finished run can be evaluated")
    if weights_digest(stored.weights) != stored.weights_sha256:
        raise BadInput(
            f"the weights in {run} are not those of its record (another SHA-256); one of the files was changed"
        )
    spec = _recorded_task(stored.source or stored.task) if task is None else task
    result = evaluate_weights(_task(spec), stored.weights, device=resolve_devices(device, 1)[0])
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        terminal.show_evaluation(stored, result)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run folders, or folders of run folders")],
    output: Annotated[Path, typer.Option("--output", "-o", help="where to write the page")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="the page's title")] = None,
    target: Target = None,
) -> None:
    """Make the page from stored runs of any day."""
    from ..pages import report as write_report

    print(write_report(runs, output, title, target))


@app.command()
def runs(
    root: Annotated[Path, typer.Argument(metavar="FOLDER", help="where runs are kept")] = Path("runs"),
    task: Annotated[str | None, typer.Option(help="only runs of this task")] = None,
    strategy: Annotated[str | None, typer.Option(help="only runs under this strategy")] = None,
    status: Annotated[str | None, typer.Option(help="only done, failed, refused or stopped runs")] = None,
    as_json: AsJson = False,
) -> None:
    """List stored runs, newest first, side by side."""
    import json

    from ..record.exports import find_runs
    from . import terminal

    found = find_runs(root, task, strategy, status)
    if as_json:
        print(json.dumps({"runs": [{"folder": str(run.folder), **run.record()} for run in found]}, indent=1))
    else:
        terminal.show_runs(found, root)


@app.command()
def watch(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="its folder (default: the one running)")] = None,
    seconds: Annotated[float | None, typer.Option(help="look for this long, then leave")] = None,
) -> None:
    """Show a running run: curve, phases, ranks. Leaving does not disturb it."""
    from . import watch as watching

    watching.watch(watching.find(run), limit=seconds)


@app.command()
def chaos(
    task: TaskArgument = "glyphs",
    strategies: Annotated[
        list[str] | None, typer.Argument(metavar="STRATEGY", help="default: ddp; with --all: all")
    ] = None,
    fault: Annotated[
        str | None, typer.Option(help="kill, stop, raise, exit, slow, hang, sigterm, disk-full, ...")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="the rank it strikes (default: the last)")] = None,
    step: Annotated[int | None, typer.Option(help="the step it strikes in")] = None,
    every: Annotated[bool, typer.Option("--all", help="every fault under every strategy")] = False,
    ranks: Ranks = None,
    max_steps: MaxSteps = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    device: Device = "auto",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Break a run on purpose: what is noticed, resumed, lost and left behind."""
    import json

    from ..studies.chaos import FAULTS, STEPS, chaos_matrix, table
    from ..studies.chaos import chaos as break_one

    chosen = _task(task, batch_size, seed)
    say = (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))
    options: dict[str, Any] = {"ranks": ranks, "max_steps": max_steps or STEPS, "device": device}
    if every or (strategies and len(strategies) > 1) or fault is None:
        if rank is not None or step is not None:
            raise BadInput("--rank and --step aim one fault; give --fault and one strategy with them")
        named = strategies or (None if every else ["ddp"])
        tell = lambda result: say(f"{result['strategy']}, {result['fault']}: {result['outcome']}")  # noqa: E731
        results = chaos_matrix(chosen, named, FAULTS if fault is None else [fault], say=say, on_result=tell, **options)
    else:
        results = [break_one(chosen, (strategies or ["ddp"])[0], fault, rank, step, **options)]
    print(json.dumps({"results": results}, indent=1) if as_json else table(results))


@app.command()
def tasks(as_json: AsJson = False) -> None:
    """List the built-in tasks."""
    from ..tasks import builtin
    from . import terminal

    terminal.show_list(builtin(), as_json)


@app.command()
def strategies(as_json: AsJson = False) -> None:
    """List the strategies: what each does, whether it is exact, where it runs."""
    from ..strategies import TABLE, make_strategy
    from . import terminal

    terminal.show_strategies([make_strategy(name) for name in TABLE], as_json)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    if version:
        from .. import __version__

        print(__version__)
        raise typer.Exit(DONE)


def _task(spec: str, batch_size: int | None = None, seed: int | None = None) -> Any:
    from ..tasks import load_task
    from ..training import PRELOAD
    from ..world.launch.fork_server import warm_up
    from ..world.rank import started_by_torchrun

    if not started_by_torchrun():
        warm_up(PRELOAD)  # the ranks' server imports torch while we read the task
    task = load_task(spec, batch_size)  # the task's own recipe may scale its rate with the batch
    return task if seed is None else task.replace(seed=seed)


def _recorded_task(spec: str) -> str:
    """The task a record names. Records come from anywhere and loading runs the file, so it must be one of ours."""
    from ..tasks import task_file

    file = task_file(spec)
    if file is not None and not file.resolve().is_relative_to(Path.cwd()):
        raise BadInput(
            f"the run's record names {file}, outside of the current folder, and loading it runs it; "
            f"if you trust it, pass --task {spec}"
        )
    return spec


def _source(spec: str) -> str:
    """What finds the task again from any folder."""
    path, _, rest = spec.partition(":")
    return f"{Path(path).resolve()}{':' + rest if rest else ''}" if path.endswith(".py") else spec


def _new_folder(task: str, strategy: str) -> Path:
    """runs/<date>-<task>-<strategy>, with a number where that is taken."""
    plain = "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in f"{task or 'task'}-{strategy}")
    base = Path("runs") / f"{datetime.now():%Y-%m-%d-%H%M%S}-{plain}"
    folder, number = base, 2
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


def _command() -> str:
    return shlex.join(["manyhands", *sys.argv[1:]])


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
    except RankFailed as problem:
        if problem.traceback:
            print(problem.traceback.rstrip(), file=sys.stderr)
        code = _complain(str(problem), FAILED)
    except ManyhandsError as problem:
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
