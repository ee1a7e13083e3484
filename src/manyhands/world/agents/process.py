"""The process of an agent that was started by a command: finds the caller through the folder, and serves it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path


def main(folder: str) -> None:
    from .agent import Agent
    from .lines import TcpLine

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle
    place = int(os.environ.get("MANYHANDS_PLACE") or os.environ.get("SLURM_NODEID") or 0)
    host = os.environ.get("MANYHANDS_HOST") or os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        line = TcpLine(Path(folder))
    except OSError as problem:
        sys.exit(f"manyhands: the agent on {host} found no caller: {problem}")
    Agent(line, host).live(place)
