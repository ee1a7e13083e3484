"""What the machine did meanwhile: use of every core and GPU, sampled by the caller while the ranks train.

The caller has nothing else to do during a fit, so sampling costs the ranks nothing.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

SAMPLE_SECONDS = 0.5


class Usage:
    """Call `sample` whenever the ranks are known to train; it looks at most twice a second."""

    def __init__(self) -> None:
        self._cores: list[list[float]] = []
        self._gpus: list[list[tuple[float, float]]] = []
        self._last: float | None = None
        self._handles: list[Any] | None = None

    def sample(self) -> None:
        now = time.monotonic()
        if self._last is not None and now - self._last < SAMPLE_SECONDS:
            return
        import psutil

        percents = psutil.cpu_percent(percpu=True)  # since the last call
        if self._last is not None:
            self._cores.append(percents)
            self._gpus.append([_gpu(handle) for handle in self._gpu_handles()])
        self._last = now

    def pause(self) -> None:
        """What happens from now on is not training (an evaluation, say)."""
        self._last = None

    def result(self) -> dict[str, Any] | None:
        """Means over the samples, in percent; None where the run was too short to look."""
        if not self._cores:
            return None
        cores, gpus = np.mean(self._cores, axis=0), np.array(self._gpus)  # samples x GPUs x (percent, bytes)
        return {
            "cores": [{"core": core, "mean_percent": round(float(use), 1)} for core, use in enumerate(cores)],
            "gpus": [
                {"gpu": gpu, "mean_percent": round(float(use.mean()), 1), "memory_bytes": float(held.max())}
                for gpu, (use, held) in enumerate(gpus.transpose(1, 2, 0) if gpus.size else ())
            ],
            "samples": len(self._cores),
        }

    def _gpu_handles(self) -> list[Any]:
        if self._handles is None:
            try:
                import pynvml

                pynvml.nvmlInit()
                self._handles = [
                    pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())
                ]
            except Exception:  # no driver, no GPU, no library: then there is nothing to sample
                self._handles = []
        return self._handles


def _gpu(handle: Any) -> tuple[float, float]:
    import pynvml

    return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu), float(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
