"""The shares of the kinds of operations in a step."""

import pytest
import torch
from torch import nn

from benchmarks.step_shares import profiled, shares


def test_each_operation_counts_with_its_kind() -> None:
    times = [("aten::mkldnn_convolution", 3.0), ("batchsieve::small_map_convolution", 1.0), ("aten::zeros", 4.0)]
    found = shares([*times, ("aten::addmm_", 2.0)])
    assert found["small maps"] == pytest.approx(0.3)
    assert found["convolution"] == pytest.approx(0.3)
    assert found["other"] == pytest.approx(0.4)
    assert sum(found.values()) == pytest.approx(1)


def test_a_step_of_convolutions_is_mostly_convolution() -> None:
    layer, images = nn.Conv2d(16, 64, 3, padding=1), torch.randn(16, 16, 32, 32)

    def run(steps: int) -> None:
        for _ in range(steps):
            layer(images).sum().backward()

    row = profiled(run, steps=2)
    assert float(row["convolution"]) > 50
    assert float(row["ms"]) > 0
