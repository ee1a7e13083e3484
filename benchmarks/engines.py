"""The same task, seed and threads on every engine: equal weights where ranks talk the same way, to rounding elsewhere.

python benchmarks/engines.py local torchrun slurm:nodes=2 ray        with SLURM_CONF and a Ray cluster in reach
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import manyhands as mh

TASK, STEPS = "glyphs:train=1024,test=256", 16


def trained(engine: str, ranks: int, transport: str) -> mh.Run:
    """One fit there; torchrun starts the command line."""
    strategy = f"ddp:transport={transport}"
    if engine != "torchrun":
        options = {"max_steps": STEPS, "device": "cpu", "threads": 1, "progress": False}
        return mh.fit(mh.load_task(TASK), strategy, ranks=ranks, on=engine, **options)
    with tempfile.TemporaryDirectory() as folder:
        starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        words = ["-m", "manyhands", "train", TASK, strategy, "--max-steps", str(STEPS), "--device", "cpu"]
        words += ["--threads", "1", "--quiet"]
        subprocess.run([*starter, *words, "--run-dir", folder], check=True, capture_output=True)
        return mh.Run.load(Path(folder))


def distance(run: mh.Run, other: mh.Run) -> float:
    assert run.weights is not None
    assert other.weights is not None
    return max(float((run.weights[name] - other.weights[name]).abs().max()) for name in run.weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", default=["local", "torchrun"])
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--transports", default="gloo,auto")
    chosen = parser.parse_args()
    print(f"{'ranks':>5}  {'asked':<5}  {'used':<5}  {'engine':<19}  {'weights':<10}  {'from local':>10}  start  hosts")
    for ranks in map(int, chosen.ranks.split(",")):
        for transport in chosen.transports.split(","):
            local = trained("local", ranks, transport)
            for engine in chosen.engines:
                run = local if engine == "local" else trained(engine, ranks, transport)
                hosts = ",".join(dict.fromkeys(str(one["host"]) for one in run.per_rank or []))
                print(
                    f"{ranks:>5}  {transport:<5}  {run.transport or '-':<5}  {engine:<19}  {str(run.weights_sha256)[:8]:<10}"
                    f"  {distance(run, local):>10.1e}  {run.startup_seconds or 0:>3.0f} s  {hosts}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
