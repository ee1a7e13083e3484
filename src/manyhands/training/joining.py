"""join(): take part in a fit as one of torchrun's ranks."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace

import psutil
import torch
import torch.distributed as dist

from ..errors import BadInput, ManyhandsError, Refused
from ..record.run import available_cores
from ..strategies.contract import admit, check_stream, processes
from ..world.health.heartbeats import Board
from ..world.health.torchrun_stalls import TorchrunWatch
from ..world.launch.rank_process import describe
from ..world.rank import COLLECTIVE_SECONDS, Rank, connect, disconnect, share_board, share_over_store, torchrun_place
from .attempts import Fitting
from .checkpoints.checkpoint import Checkpoint, published
from .rank_training import Outcome, RankTraining


def join(fitting: Fitting, resume: bool, stall_seconds: float | None) -> Outcome | None:
    """Be one of torchrun's ranks; after one of its restarts go on from the last checkpoint."""
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    fitting.run.restarts = restarts
    job, strategy, run = fitting.job, fitting.strategy, fitting.run
    index, world, hosts = torchrun_place()
    if processes(strategy) != world:
        raise BadInput(
            f"torchrun started {world} processes but {strategy} needs {processes(strategy)}; "
            f"use --ranks {world} or --nproc-per-node {processes(strategy)}"
        )
    if hosts > 1 and not strategy.traits.hosts:
        raise Refused(
            f"{strategy.name} shares memory and cannot run over several hosts (hosts: {hosts}); "
            "use ddp or parameter_server"
        )
    fitting.look_at_torch(hosts, say=index == 0)
    check_stream(strategy, job, fitting.plan.survive)
    fitting.try_out()
    admit(strategy, job, fitting.devices)
    run.threads = fitting.threads or max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", world)))
    before = torch.get_num_threads()
    torch.set_num_threads(run.threads)
    rank = _rank(fitting, index, world, hosts)
    own_group = not dist.is_initialized()
    if own_group:
        connect(rank, fitting.transport, None, COLLECTIVE_SECONDS)
    try:
        if hosts == 1:
            share_board(rank)
        with TorchrunWatch(rank, stall_seconds) if hosts == 1 and world > 1 else nullcontext():
            job.prepared = rank.agree(strategy.prepare(job) if index == 0 else None)
            shared = strategy.share(job) if hosts == 1 else None
            if shared is not None:
                rank.shared = share_over_store(rank, shared)
            start = _agree_on_start(fitting, rank, resume, restarts > 0)
            return RankTraining(job, strategy, rank, replace(fitting.plan, resume=start)).run()
    except ManyhandsError:
        raise
    except Exception as problem:
        raise describe(problem, index, rank.board) from problem
    finally:
        if own_group:
            disconnect(rank)
        torch.set_num_threads(before)


def _rank(fitting: Fitting, index: int, world: int, hosts: int) -> Rank:
    local = int(os.environ.get("LOCAL_RANK", index))
    device = fitting.devices[local if hosts > 1 else index]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    ranks, threads = fitting.strategy.ranks, fitting.run.threads or 1
    board = Board(world, ranks=ranks)
    rank = Rank(index, world, ranks, device, board, threads, fitting.hear, fitting.answer, None, hosts)
    rank.devices = fitting.devices
    return rank


def _agree_on_start(fitting: Fitting, rank: Rank, resume: bool, restarted: bool) -> Checkpoint | None:
    """Rank 0 reads the checkpoint for all: only its host need have the folder. A refusal is everybody's."""
    found: Checkpoint | BadInput | None = None
    if rank.index == 0:
        try:
            found = fitting.resumable() if resume else None
            if found is None and restarted and _written_since_torchrun_began(fitting):
                found = fitting.last_checkpoint()
            fitting.make_room(found)
        except BadInput as refusal:
            found = refusal
    found = rank.agree(found)
    if isinstance(found, BadInput):
        raise found
    return found


def _written_since_torchrun_began(fitting: Fitting) -> bool:
    """Whether the checkpoints are of this launch: one that dies before its first leaves those of a run before it."""
    if fitting.plan.keeping is None or fitting.checkpoints is None:
        return False
    began = psutil.Process(os.getppid()).create_time()
    return any(path.stat().st_mtime >= began for path in published(fitting.checkpoints))
