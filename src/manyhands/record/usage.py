"""What the machine did meanwhile: use of every core and GPU, sampled by the caller while the ranks train.

The caller has nothing else to do during a fit, so sampling costs the ranks nothing.
"""

from __future__ import annotations

import time
from typing import Any

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
        number = len(self._cores)
        cores = [
            {"core": core, "mean_percent": round(sum(sample[core] for sample in self._cores) / number, 1)}
            for core in range(len(self._cores[0]))
        ]
        gpus = [
            {
                "gpu": gpu,
                "mean_percent": round(sum(sample[gpu][0] for sample in self._gpus) / number, 1),
                "memory_bytes": max(sample[gpu][1] for sample in self._gpus),
            }
            for gpu in range(len(self._gpus[0]))
        ]
        return {"cores": cores, "gpus": gpus, "samples": number}

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
