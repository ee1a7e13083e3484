"""`manyhands plan`: what strategies would do with a task, before they are run; and how good such forecasts were."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import BadInput
from ..record.neighbours import BUSY
from .inputs import begin, read_task
from .options import AsJson, Quiet, RankCounts, TaskArgument, fit_options, rank_counts, strategy_names, with_options

if TYPE_CHECKING:
    from ..studies.plan.plan import Plan

RUNS = Path("runs")
SIMULATED = "~"
LABEL_WIDTH = 22  # a longer name goes on in the next line


@with_options(fit_options)
def plan(
    task: TaskArgument = "glyphs",
    strategies: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STRATEGY",
            help="Strategies to forecast, with options if you like (default: all).",
            autocompletion=strategy_names,
        ),
    ] = None,
    ranks: RankCounts = None,
    hosts: Annotated[int, typer.Option(metavar="H", help="Spread the ranks over this many hosts like this one.")] = 1,
    link: Annotated[
        str | None,
        typer.Option(
            "--link",
            metavar="LINK",
            help="The network between hosts: bandwidth and latency (default: 10gbit,50us), or a file by --measure-link.",
        ),
    ] = None,
    measure_link: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Only measure the link between two hosts, by --on or torchrun, for --link FILE."
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory that a rank may take, such as 80G.")
    ] = None,
    cores: Annotated[
        int | None, typer.Option(metavar="C", help="Cores of each host (default: as many as here).")
    ] = None,
    price: Annotated[
        float | None, typer.Option(metavar="P", help="Price of a host per hour: adds the cost to finish the task.")
    ] = None,
    budget: Annotated[float, typer.Option(metavar="S", help="Seconds the calibration may take.")] = 60.0,
    trials: Annotated[
        bool, typer.Option("--trials/--no-trials", help="Try rows with few ranks for a moment, or simulate all rows.")
    ] = True,
    ranks_per_host: Annotated[
        int | None, typer.Option(metavar="N", help="For many hosts: ranks on each, with failures and stragglers.")
    ] = None,
    mtbf: Annotated[
        str | None, typer.Option(metavar="TIME", help="There: mean time between failures of a host, such as 30d.")
    ] = None,
    restart_seconds: Annotated[float, typer.Option(metavar="S", help="There: what a restart takes.")] = 60.0,
    checkpoint_seconds: Annotated[float, typer.Option(metavar="S", help="There: what a checkpoint takes.")] = 10.0,
    stragglers: Annotated[
        float, typer.Option(metavar="SHARE", help="There: how much step times of ranks vary, such as 0.05.")
    ] = 0.0,
    score: Annotated[
        bool, typer.Option("--score", help="Compare kept forecasts with the runs that were made since.")
    ] = False,
    runs: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder of runs that forecasts are kept beside.")
    ] = RUNS,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **chosen: Any,
) -> None:
    """Forecast what strategies would do, without running them.

    It measures the task on this machine for at most a minute, forecasts speed, memory, time and cost of every strategy and
    number of ranks, each speed with an 80 % interval, and names the best. Later runs score the forecasts (--score).
    """
    if measure_link is not None:
        if strategies or ranks is not None or link is not None or score:
            raise BadInput(
                "--measure-link measures and plans nothing; leave out STRATEGY, --ranks, --link and --score, "
                f"then plan with --link {measure_link}"
            )
        _measure_link(measure_link, chosen["on"], as_json)
        return
    if score:
        _score(runs, as_json)
        return
    counts = rank_counts(ranks)
    begin(task, *(strategies or ()))
    from ..record.run_folder import check_writable
    from ..studies.plan.failures import Failures
    from ..studies.plan.many_hosts import Fleet
    from ..studies.plan.measured_link import link_of
    from ..studies.plan.plan import ON_HOSTS, kept
    from ..studies.plan.plan import plan as forecast
    from ..studies.plan.stragglers import Stragglers
    from ..studies.plan.units import parse_bytes, parse_seconds
    from . import terminal

    began = time.monotonic()

    def say(text: str) -> None:
        if not quiet:
            print(f"{time.monotonic() - began:5.0f} s  {text}", file=sys.stderr, flush=True)

    if chosen.pop("on") != "local":
        raise BadInput(
            "plan measures on this machine; leave out --on, and describe other hosts with --hosts and --link "
            "(--on goes with --measure-link)"
        )
    fleet = None
    if ranks_per_host is not None:
        if counts is not None:
            raise BadInput("--ranks-per-host says how many ranks each host has; leave out --ranks")
        failing = Failures(math.inf if mtbf is None else parse_seconds(mtbf), restart_seconds)
        spread = Stragglers(stragglers)
        fleet = Fleet(hosts, ranks_per_host, link_of(link or ON_HOSTS), failing, spread, checkpoint_seconds)
    elif mtbf is not None or stragglers:
        raise BadInput("--mtbf and --stragglers are for many hosts; give --hosts and --ranks-per-host with them")
    check_writable(runs, "--runs")
    work = read_task(task, chosen.pop("batch_size"), chosen.pop("seed"))
    found = forecast(
        work,
        strategies,
        ranks=counts,
        hosts=hosts if fleet is None else 1,
        link=link,
        cores=cores,
        memory=None if memory is None else parse_bytes(memory),
        price=price,
        budget=budget,
        trials=trials,
        fleet=fleet,
        runs=runs,
        say=say,
        **chosen,
    )
    try:
        ledger: str | None = str(kept(found, runs))
    except OSError as problem:  # what was measured for a minute is shown all the same
        ledger = None
        print(f"manyhands: the forecasts could not be kept in {runs} ({problem.strerror})", file=sys.stderr)
    if as_json:
        terminal.show_json({**found.record(), "ledger": ledger})
        return
    _show(found, price is not None, hosts)
    if ledger is not None:
        print(f"kept in {ledger}; `manyhands plan --score` compares them with later runs")


def _measure_link(file: Path, on: str, as_json: bool) -> None:
    import json

    from ..studies.plan.measured_link import measure
    from . import terminal

    link = measure(file, on)
    if link is None:
        return  # the other host's process reports it
    if as_json:
        terminal.show_json(json.loads(file.read_text()))
    else:
        print(f"{link}, kept in {file}; forecast with it: manyhands plan TASK --hosts 2 --link {file}")


def _score(folder: Path, as_json: bool) -> None:
    from ..studies.plan.score import score
    from . import terminal
    from .score_table import show_score

    result = score(folder)
    if as_json:
        terminal.show_json(result)
    else:
        show_score(result)


def _too_short(skipped: Sequence[str], enough: float) -> str:
    """What rows that were not tried, or ranks that were never seen side by side, mean for the figures."""
    shown = ", ".join(skipped[:2]) + (", ..." if len(skipped) > 2 else "")
    return (
        f"the budget was too short for {len(skipped)} measurement{'s' * (len(skipped) != 1)} ({shown}): forecasts that "
        f"follow from them are guesses; use --budget {10 * math.ceil(enough / 10)}"
    )


def _show(found: Plan, priced: bool, hosts: int) -> None:
    from ..pages import name_lines
    from ..studies.plan.plan import label
    from . import terminal

    out = terminal.console()
    feasible = [one for one in found.forecasts if one.feasible]
    headings = ["strategy", "ranks", "samples/s", "80 % interval", "memory", "to finish", *(["cost"] if priced else [])]
    filled = terminal.table(headings, numbers=headings[1:], gap=1 if priced else 2)
    for one in feasible:
        assert one.samples_per_second is not None
        assert one.interval is not None
        threads = f" ({one.threads} thread{'s' * (one.threads != 1)})" if one.strategy == "single" else ""
        low, high = one.interval
        mark = SIMULATED if one.basis == "simulated" else ""
        filled.add_row(
            "\n ".join(name_lines(f"{one.strategy}{threads}", LABEL_WIDTH)),
            str(one.ranks),
            f"{mark}{one.samples_per_second:,.0f}",
            f"{100 * (low / one.samples_per_second - 1):+.0f} to {100 * (high / one.samples_per_second - 1):+.0f} %",
            "-" if one.memory_bytes is None else f"{one.memory_bytes / 2**20:,.0f} MiB",
            _duration(one.seconds),
            *([f"{one.cost:,.2f}"] if one.cost is not None else []),
        )
    if feasible:
        out.print(filled)
    if any(one.basis == "simulated" for one in feasible):
        out.print(f"{SIMULATED} simulated; the others were tried for a moment")
    for one in found.forecasts:
        if not one.feasible:
            out.print(f"not feasible: {label(one)}: {one.reason}", soft_wrap=True)
    others, cores = found.calibration.others_cores, found.calibration.cores
    if others is not None and others > BUSY * cores:
        out.print(f"other processes used {others:.1f} of {cores} cores meanwhile; plan again on a quiet machine")
    if found.calibration.enough_seconds is not None:
        out.print(_too_short(found.calibration.skipped, found.calibration.enough_seconds))
    if found.fleet:
        _show_fleet(found, priced, hosts)
    elif found.best is not None:
        out.print()
        out.print(f"Best: {label(found.best)}. {found.why}")
    else:
        out.print(found.why)


def _show_fleet(found: Plan, priced: bool, hosts: int) -> None:
    from . import terminal

    out = terminal.console()
    out.print()
    out.print(f"On {hosts:,} hosts, the batch of one on each:")
    headings = ["strategy", "ranks", "samples/s", "goodput", "checkpoint every", "to finish", "failures"]
    headings += ["cost"] if priced else []
    filled = terminal.table(headings, numbers=headings[1:], gap=1 if priced else 2)
    for one in found.fleet:
        if (result := one.forecast) is not None:
            filled.add_row(
                one.strategy,
                f"{result.ranks:,}",
                f"{result.samples_per_second.expected:,.0f}",
                f"{100 * result.goodput:.1f} %",
                _duration(result.checkpoint_interval_seconds),
                _duration(result.wall_seconds.expected),
                f"{result.failures:,.1f}",
                *([] if one.cost is None else [f"{one.cost.expected:,.2f}"]),
            )
    out.print(filled)
    if found.best_of_fleet is not None:
        out.print(f"Best on {hosts:,} hosts: {found.best_of_fleet.strategy}, the first to finish.")
    for one in found.fleet:
        if one.reason is not None:
            out.print(f"not feasible: {one.strategy}: {one.reason}", soft_wrap=True)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"
