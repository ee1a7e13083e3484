"""A forecast for two hosts over a slow link, and then the run itself: how far apart?

    python benchmarks/plan_link.py --rate 100mbit --rounds 3        (as root: the hosts are network namespaces)

The forecast is made on this machine, knowing of the link only its bandwidth and latency; then a rank on each of two hosts
(network namespaces that a pair of virtual cards joins, limited by `tc`) trains the same task, round after round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

from links import two_hosts

STEPS, WARM = 64, 16
BURST = (
    "64kb"  # that passes at full speed after a pause: a larger one would carry the averages of local_sgd for nothing
)


def measured(rate: str, task: str, strategy: str) -> float:
    """Milliseconds per step of a rank on each host."""
    with two_hosts(rate, BURST) as hosts:
        ranks = []
        for rank, (space, card, _) in enumerate(hosts):
            place = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "GROUP_WORLD_SIZE": 2}
            place |= {"MASTER_ADDR": hosts[0][2], "MASTER_PORT": 29500, "GLOO_SOCKET_IFNAME": card}
            command = ["ip", "netns", "exec", space, sys.executable, __file__, "--rank", task, strategy]
            environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
            ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        try:
            said = [process.communicate(timeout=600)[0] for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        return float(json.loads(said[0].splitlines()[-1])["step_ms"])


def be_rank(task: str, strategy: str) -> None:
    import manyhands as mh

    work = mh.load_task(task).replace(test=None)
    run = mh.fit(work, strategy, ranks=2, max_steps=WARM + STEPS, threads=1, device="cpu", progress=False)
    if os.environ["RANK"] == "0":
        print(json.dumps({"step_ms": statistics.fmean(run.durations_ms[WARM:])}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--latency", default="100us")
    parser.add_argument("--task", default="glyphs")
    parser.add_argument("--strategies", default="ddp,local_sgd")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rank:
        be_rank(*chosen.rank)
        return
    import manyhands as mh

    strategies = chosen.strategies.split(",")
    found = mh.plan(
        mh.load_task(chosen.task), strategies, ranks=2, threads=1, hosts=2, link=f"{chosen.rate},{chosen.latency}"
    )
    for strategy in strategies:
        [forecast] = [one for one in found.forecasts if one.strategy == strategy]
        times = [measured(chosen.rate, chosen.task, strategy) for _ in range(chosen.rounds)]
        middle = statistics.median(times)
        print(
            f"{strategy}: forecast {forecast.step_ms:.1f} ms, measured {middle:.1f} ms "
            f"({min(times):.1f} to {max(times):.1f}), error {100 * (forecast.step_ms / middle - 1):+.1f} %"
        )


if __name__ == "__main__":
    main()
