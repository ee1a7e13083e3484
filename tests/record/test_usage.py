"""The use of cores: the mean over all samples, the latest one, and no more memory after weeks."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from manyhands.record import usage


def test_means_and_the_latest_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    samples: Iterator[list[float]] = iter([[99.0, 99.0], [100.0, 50.0], [50.0, 0.0], [7.0]])
    monkeypatch.setattr(usage, "SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(psutil, "cpu_percent", lambda percpu: next(samples))
    monkeypatch.setattr(usage, "_gpu", lambda handle: (10.0 * handle, 1000.0 / handle))
    watch = usage.Usage()
    watch._handles = [1, 2]
    assert (watch.result(), watch.now()) == (None, {"cores": [], "gpus": []})
    for _ in range(3):  # the first has no beginning
        watch.sample()
    found = watch.result()
    assert found is not None
    assert [core["mean_percent"] for core in found["cores"]] == [75.0, 25.0]
    assert [(gpu["mean_percent"], gpu["memory_bytes"]) for gpu in found["gpus"]] == [(10.0, 1000.0), (20.0, 500.0)]
    assert found["samples"] == 2
    assert watch.now()["cores"] == [50.0, 0.0]
    watch.sample()  # a core was taken away
    assert (watch.result(), watch.now()["cores"]) == (found, [7.0])
