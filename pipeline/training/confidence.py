"""Per-sample label confidence averaged over training.

A network fits a wrong label late, if at all. So the mean probability over the epochs (the confidence of Swayamdipta et
al., 2020, Dataset Cartography, section 2.1) stays low for labels that the trained network has memorized.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline import distributed
from pipeline.durations import BatchSizes

# Sums are of integer multiples of this unit, so they depend on no order of images, ranks or interruptions.
_UNIT = 2.0**-24


def first_tracked_step(steps: int, n_train: int, batch_sizes: BatchSizes) -> int:
    """Return the first step to track: the second half of the steps, or the last two epochs if that is more.

    Early probabilities are low for every label. Two epochs show every sample at least once.
    """
    before_two_epochs = batch_sizes.examples(steps) - 2 * n_train
    if before_two_epochs <= 0:
        return 0
    return min(steps // 2, batch_sizes.max_steps_for(before_two_epochs))


class ConfidenceTracker:
    """Sums the probability of each sample's label over the forward passes in which the network trained on it.

    Args:
        n: samples of the data set.
    """

    def __init__(self, n: int, device: torch.device) -> None:
        self._sums = torch.zeros(n, dtype=torch.int64, device=device)
        self._passes = torch.zeros(n, dtype=torch.int64, device=device)

    @torch.no_grad()
    def update(self, sample_ids: Tensor, targets: Tensor, logits: Tensor) -> None:
        """Add a forward pass: sample ids and labels (B,), logits (B, n_classes)."""
        probability = logits.float().softmax(1).gather(1, targets[:, None])[:, 0]
        # A batch across two epochs may contain a sample twice.
        self._sums.index_add_(0, sample_ids, (probability.nan_to_num(0.0) / _UNIT).round().long())
        self._passes.index_add_(0, sample_ids, torch.ones_like(sample_ids))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the sums over all ranks; all ranks call it."""
        return {name: distributed.all_reduce_sum_(local.clone()).cpu() for name, local in self._tensors().items()}

    def load_state_dict(self, saved: dict[str, Any], *, is_main: bool) -> None:
        """Load saved sums, which rank 0 holds for all."""
        for name, tensor in self._tensors().items():
            tensor.copy_(saved[name] if is_main else torch.zeros_like(tensor))

    def means(self) -> NDArray[np.float32]:
        """Return the mean probability of each label, (N,) float32 from 0 to 1, NaN if not seen; all ranks call it."""
        sums, passes = self.state_dict().values()
        return np.asarray((sums.double() * _UNIT / passes).float().numpy())

    def _tensors(self) -> dict[str, Tensor]:
        return {"sums": self._sums, "passes": self._passes}
