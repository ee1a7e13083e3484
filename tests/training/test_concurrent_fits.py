"""Several fits in threads of one program: each gives what it gives alone."""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from manyhands.data.process_state import alone
from manyhands.record.run import weights_digest
from manyhands.world.launch.by_value import by_value_copy
from tests.conftest import make_task, quick_fit

THREADS = 6
FITS = [  # those that trace patch torch meanwhile, all draw their first weights under a seed
    (kind, strategy, seed)
    for kind, strategy, seed in (
        ("mlp", "single", 1),
        ("skips", "pipeline", 2),
        ("tied", "ddp", 3),
        ("dict", "single", 4),
        ("mlp", "model_parallel", 5),
        ("tied", "single", 6),
        ("dict", "pipeline", 7),
        ("mlp", "fsdp", 8),
    )
]


def trained(fit: tuple[str, str, int]) -> str:
    kind, strategy, seed = fit
    ranks = 1 if strategy == "single" else 2
    run = quick_fit(make_task(kind, seed=seed, test=None), strategy, ranks=ranks, max_steps=4)
    assert run.weights is not None
    return weights_digest(run.weights)


@pytest.mark.soak
def test_fits_in_threads_give_the_weights_they_give_one_after_another(nothing_left: None, two_threads: None) -> None:
    """48 fits in threads: 29 had other weights, 6 failed; tasks were exchanged while parcels were opened."""
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(trained, FITS))
    assert together == [trained(fit) for fit in FITS]
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
    assert torch.get_num_threads() == 2


def test_parcels_opened_in_threads_are_not_exchanged() -> None:
    """The buffers of a parcel being opened stood in a list that all threads shared."""

    def copies_are_whole(number: int) -> bool:
        value = [torch.full((400 + number,), float(number)), np.full(500, number)]
        copies = (by_value_copy(value) for _ in range(100))
        return all(torch.equal(one, value[0]) and np.array_equal(two, value[1]) for one, two in copies)

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(copies_are_whole, range(12)))


def test_views_of_one_storage_stay_views_and_read_only_arrays_read_only() -> None:
    whole = torch.randn(100, 100)
    fixed = np.arange(1000.0)
    fixed.setflags(write=False)
    copied: Any = by_value_copy([whole, whole[3:].t(), whole, np.asfortranarray(whole.numpy()), fixed])
    assert torch.equal(copied[1], whole[3:].t())
    assert copied[0] is copied[2]
    assert copied[0].untyped_storage()._cdata == copied[1].untyped_storage()._cdata
    copied[0][3] = 7.0
    assert copied[1][:, 0].tolist() == [7.0] * 100 != whole[3].tolist()
    assert copied[3].flags.f_contiguous
    assert copied[3].flags.writeable
    assert not copied[4].flags.writeable


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_does_not_wait_for_a_thread_it_has_not() -> None:
    """A child forked while another thread prepares a fit inherits a lock that nobody would open."""
    inside, leave = threading.Event(), threading.Event()

    def prepare() -> None:
        with alone():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=prepare)
    thread.start()
    inside.wait()
    pid = os.fork()
    if pid == 0:
        with alone():
            os._exit(7)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    finally:
        leave.set()
        thread.join()
