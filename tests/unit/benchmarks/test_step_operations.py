"""A training step on torch's `meta` device, which raises where a step reads a value from the device."""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.loop_speed import settings_for
from benchmarks.step_operations import StepCounts, count_step
from pipeline.distributed import largest_finite

_PLAIN = replace(
    settings_for(argparse.Namespace(network="resnet18", image_size=32, batch_size=64)), stem="cifar", steps=100
)


@pytest.mark.parametrize("changes", [
    {}, {"ema_decay": 0.9}, {"clip_norm": 1.0}, {"simulated_workers": 8}, {"bn_group": 8}, {"network": "small_cnn"},
], ids=str)  # fmt: skip
def test_a_step_reads_nothing_from_the_device(changes: dict[str, Any]) -> None:
    """One copy for the crops of the batch and one for its labels; small_cnn also has keys of its dropout."""
    counts = count_step(replace(_PLAIN, **changes))
    assert not counts.reads["meta"]
    assert counts.uploads == (3 if changes.get("network") == "small_cnn" else 2)


@pytest.mark.slow
def test_more_groups_are_not_more_operations() -> None:
    eight, thirty_two = (count_step(replace(_PLAIN, simulated_workers=workers)) for workers in (8, 32))
    assert eight.operations == thirty_two.operations
    by_group = count_step(replace(_PLAIN, simulated_workers=8), group_by_group=True)
    assert by_group.operations.total() > eight.operations.total()


def test_a_read_is_seen() -> None:
    with pytest.raises(RuntimeError), StepCounts():
        torch.zeros((), device="meta").item()
    with StepCounts() as counts:
        torch.zeros(()).item()
        torch.from_numpy(np.zeros(2)).to("meta")
    assert (counts.reads["cpu"], counts.uploads) == (1, 1)


def test_the_largest_elements_of_an_exact_sum_are_not_read() -> None:
    largest = largest_finite([torch.zeros(3, device="meta"), torch.zeros((), device="meta", dtype=torch.float64)])
    assert largest.shape == (2,)
