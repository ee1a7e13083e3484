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
        self._samples = 0
        self._cores: list[float] = []  # percent of each in the latest sample,
        self._gpus: list[tuple[float, float]] = []  # and percent and bytes of each GPU
        self._core_sums = self._gpu_sums = self._most_held = np.zeros(0)
        self._last: float | None = None
        self._handles: list[Any] | None = None

    def sample(self) -> None:
        now = time.monotonic()
        if self._last is not None and now - self._last < SAMPLE_SECONDS:
            return
        import psutil

        percents = psutil.cpu_percent(percpu=True)  # since the last call
        if self._last is not None:
            self._add(percents, [_gpu(handle) for handle in self._gpu_handles()])
        self._last = now

    def _add(self, cores: list[float], gpus: list[tuple[float, float]]) -> None:
        """Sums alone are kept: a fit may take weeks."""
        self._cores, self._gpus = cores, gpus
        percents, held = np.array(gpus).reshape(-1, 2).T
        if not self._samples:
            self._core_sums, self._gpu_sums, self._most_held = np.zeros(len(cores)), 0 * percents, held
        if (len(cores), len(gpus)) == (len(self._core_sums), len(self._gpu_sums)):  # a core may be taken away meanwhile
            self._samples += 1
            self._core_sums = self._core_sums + cores
            self._gpu_sums = self._gpu_sums + percents
            self._most_held = np.maximum(self._most_held, held)

    def pause(self) -> None:
        """What happens from now on is not training (an evaluation, say)."""
        self._last = None

    def now(self) -> dict[str, Any]:
        """The latest sample: percent of every core; percent and bytes of every GPU."""
        return {"cores": self._cores, "gpus": self._gpus}

    def result(self) -> dict[str, Any] | None:
        """Means over the samples, in percent; None where the run was too short to look."""
        if not self._samples:
            return None
        cores, gpus = self._core_sums / self._samples, self._gpu_sums / self._samples
        return {
            "cores": [{"core": core, "mean_percent": round(float(use), 1)} for core, use in enumerate(cores)],
            "gpus": [
                {"gpu": gpu, "mean_percent": round(float(use), 1), "memory_bytes": float(held)}
                for gpu, (use, held) in enumerate(zip(gpus, self._most_held, strict=True))
            ],
            "samples": self._samples,
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
