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

from .errors import BadInput, ManyhandsError, RankFailed

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

TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="a built-in task, or a file that defines `task`")]
Ranks = Annotated[int | None, typer.Option(help="how many ranks train (default: GPUs, else cores, at least 2)")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, or a list such as cpu,cuda:0,cuda:2")]
Epochs = Annotated[int | None, typer.Option(help="passes over the data (default: the task's)")]
BatchSize = Annotated[int | None, typer.Option(help="samples one step consumes over all ranks (default: the task's)")]
MaxSteps = Annotated[int | None, typer.Option(help="end after this many steps")]
Threads = Annotated[int | None, typer.Option(help="threads of each rank (default: cores / ranks)")]
Precision = Annotated[str, typer.Option(help="fp32 or bf16")]
LoaderWorkers = Annotated[
    str | None, typer.Option(help="worker processes that load data, for each rank; auto measures how many help")
]
Accumulate = Annotated[int, typer.Option(help="steps whose gradients go into one update")]
Clip = Annotated[float | None, typer.Option(help="largest norm of the gradient")]
SyncBatchnorm = Annotated[bool, typer.Option("--sync-batchnorm", help="BatchNorm over the samples of all ranks")]
Seed = Annotated[int | None, typer.Option(help="seed of weights, order and augmentation (default: the task's)")]
Capture = Annotated[str, typer.Option(help="auto or off: record CUDA steps once and replay them")]
Compile = Annotated[bool, typer.Option("--compile", help="compile the model with torch.compile")]
RunDir = Annotated[Path | None, typer.Option(help="where to keep the run (default: runs/<date>-<task>-<strategy>)")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON document on standard output")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]
Resume = Annotated[bool, typer.Option("--resume", help="continue from the last checkpoint in --run-dir")]
CheckpointEvery = Annotated[str | None, typer.Option(help="steps between checkpoints (200), or seconds (30s)")]
MaxRestarts = Annotated[int, typer.Option(help="restart failed ranks from the last checkpoint at most this often")]
StallSeconds = Annotated[float | None, typer.Option(help="a rank without progress for this long has stalled")]
OnDeath = Annotated[str, typer.Option(help="end, or continue without a dead rank (hogwild, async parameter_server)")]


@app.command()
def train(
    task: TaskArgument = "glyphs",
    strategy: Annotated[str, typer.Argument(metavar="STRATEGY", help="ddp, pipeline:chunks=8, ...")] = "single",
    ranks: Ranks = None,
    device: Device = "auto",
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    max_steps: MaxSteps = None,
    threads: Threads = None,
    precision: Precision = "fp32",
    loader_workers: LoaderWorkers = None,
    accumulate: Accumulate = 1,
    clip: Clip = None,
    sync_batchnorm: SyncBatchnorm = False,
    seed: Seed = None,
    capture: Capture = "auto",
    compile: Compile = False,
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
) -> None:
    """Train a task under one strategy and say where the time went."""
    from . import terminal
    from .fit import fit
    from .stored import check_logs, write_logs

    chosen = _task(task, batch_size, seed)
    if sample is not None and chosen.sample is None:
        raise BadInput(f"--sample: the task {chosen.name or task} cannot write samples; shakespeare can")
    logs = check_logs(log)
    folder = run_dir or _new_folder(chosen.name, strategy)
    try:
        run = fit(
            chosen,
            strategy,
            ranks=ranks,
            device=device,
            epochs=epochs,
            max_steps=max_steps,
            threads=threads,
            precision=precision,
            loader_workers=_count_or_word(loader_workers),
            accumulate=accumulate,
            clip=clip,
            sync_batchnorm=sync_batchnorm,
            capture=capture,
            compile=compile,
            run_dir=folder,
            resume=resume,
            checkpoint_every=checkpoint_every,
            max_restarts=max_restarts,
            stall_seconds=stall_seconds,
            on_death=on_death,
            progress=not quiet,
            command=_command(),
            source=_source(task),
        )
    except RankFailed as failure:
        if as_json and getattr(failure, "run", None) is not None:
            print(failure.run.to_json())  # type: ignore[attr-defined]
        raise
    if int(os.environ.get("RANK", "0")) != 0:
        return  # torchrun started several of us; rank 0 speaks
    write_logs(run, folder, logs)
    if as_json:
        print(run.to_json())
    else:
        terminal.show_run(run)
    if sample is not None:
        text = terminal.write_sample(chosen, run, sample)
        print(text, file=sys.stderr if as_json else sys.stdout)


@app.command()
def compare(
    task: TaskArgument = "glyphs",
    strategies: Annotated[
        list[str] | None, typer.Argument(metavar="[STRATEGY]...", help="default: a sensible handful")
    ] = None,
    ranks: Ranks = None,
    rounds: Annotated[int, typer.Option(help="interleaved slices that measure speed")] = 3,
    target: Annotated[float | None, typer.Option(help="a test accuracy (0..1): show the seconds to reach it")] = None,
    time_limit: Annotated[float | None, typer.Option(help="seconds each strategy may take")] = None,
    device: Device = "auto",
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    max_steps: MaxSteps = None,
    threads: Threads = None,
    precision: Precision = "fp32",
    loader_workers: LoaderWorkers = None,
    accumulate: Accumulate = 1,
    clip: Clip = None,
    sync_batchnorm: SyncBatchnorm = False,
    seed: Seed = None,
    capture: Capture = "auto",
    compile: Compile = False,
    run_dir: RunDir = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a task under several strategies: a table, and a page with charts."""
    import json

    from . import terminal
    from .compare import compare as compare_runs
    from .report import report as write_report

    chosen = _task(task, batch_size, seed)
    folder = run_dir or _new_folder(chosen.name, "compare")
    runs = compare_runs(
        chosen,
        strategies or None,
        ranks=ranks,
        threads=threads,
        rounds=rounds,
        time_limit=time_limit,
        run_dir=folder,
        progress=not quiet,
        device=device,
        epochs=epochs,
        max_steps=max_steps,
        precision=precision,
        loader_workers=_count_or_word(loader_workers),
        accumulate=accumulate,
        clip=clip,
        sync_batchnorm=sync_batchnorm,
        capture=capture,
        compile=compile,
        command=_command(),
        source=_source(task),
    )
    page = write_report(runs, folder / "report.html", target=target)
    if as_json:
        print(json.dumps({"runs": [run.record() for run in runs], "report": str(page)}, indent=1))
    else:
        terminal.show_comparison(runs, page, target)
    if any(run.status == "stopped" for run in runs):
        raise KeyboardInterrupt
    if any(run.status == "failed" for run in runs):
        raise typer.Exit(FAILED)


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="the folder of a finished run")],
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Evaluate a finished run's weights on its task's test set."""
    import json

    from . import terminal
    from .devices import resolve_devices
    from .evaluate import evaluate as evaluate_weights
    from .measure.run import Run

    stored = Run.load(run)
    if stored.weights is None:
        raise BadInput(f"{run} holds no weights (status: {stored.status}); only a finished run can be evaluated")
    result = evaluate_weights(_task(stored.source or stored.task), stored.weights, device=resolve_devices(device, 1)[0])
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        terminal.show_evaluation(stored, result)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="run folders, or folders of run folders")],
    output: Annotated[Path, typer.Option("--output", "-o", help="where to write the page")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="the page's title")] = None,
    target: Annotated[float | None, typer.Option(help="a test accuracy (0..1): show the seconds to reach it")] = None,
) -> None:
    """Make the page from stored runs of any day."""
    from .report import report as write_report

    print(write_report(runs, output, title, target))


@app.command()
def runs(
    root: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="where runs are kept")] = Path("runs"),
    task: Annotated[str | None, typer.Option(help="only runs of this task")] = None,
    strategy: Annotated[str | None, typer.Option(help="only runs under this strategy")] = None,
    status: Annotated[str | None, typer.Option(help="only done, failed, refused or stopped runs")] = None,
    as_json: AsJson = False,
) -> None:
    """List stored runs, newest first, side by side."""
    import json

    from . import terminal
    from .stored import find_runs

    found = find_runs(root, task, strategy, status)
    if as_json:
        print(json.dumps({"runs": [{"folder": str(run.folder), **run.record()} for run in found]}, indent=1))
    else:
        terminal.show_runs(found, root)


@app.command()
def watch(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="its folder (default: the one running)")] = None,
    seconds: Annotated[float | None, typer.Option(help="look for this long, then leave")] = None,
) -> None:
    """Show a running run: curve, phases, ranks. Leaving does not disturb it."""
    from . import watching

    watching.watch(watching.find(run), limit=seconds)


@app.command()
def chaos(
    task: TaskArgument = "glyphs",
    strategies: Annotated[
        list[str] | None, typer.Argument(metavar="[STRATEGY]...", help="default: ddp; with --all: all")
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

    from .chaos import FAULTS, STEPS, chaos_matrix, table
    from .chaos import chaos as break_one

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
    from . import terminal
    from .tasks import builtin

    terminal.show_list(builtin(), as_json)


@app.command()
def strategies(as_json: AsJson = False) -> None:
    """List the strategies: what each does, whether it is exact, where it runs."""
    from . import terminal
    from .strategies import TABLE, strategy_class

    terminal.show_strategies([strategy_class(name) for name in TABLE], as_json)


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    if version:
        from . import __version__

        print(__version__)
        raise typer.Exit(DONE)


def _task(spec: str, batch_size: int | None = None, seed: int | None = None) -> Any:
    from .tasks import load_task
    from .world.launch import warm_up
    from .world.rank import started_by_torchrun

    if not started_by_torchrun():
        warm_up()  # the ranks' server imports torch while we read the task
    task = load_task(spec, batch_size)  # the task's own recipe may scale its rate with the batch
    return task if seed is None else task.replace(seed=seed)


def _count_or_word(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


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
    print(f"manyhands: {message}", file=sys.stderr)
    return code


def _terminated(number: int, frame: object) -> None:
    raise KeyboardInterrupt
