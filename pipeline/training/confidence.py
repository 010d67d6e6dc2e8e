"""How sure a network was of each image's label while it trained.

A wrong label is believed late, if at all: the mean over the epochs (the confidence of Swayamdipta et
al., 2020, Dataset Cartography, section 2.1) still doubts what the trained network has learned by heart.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline import distributed
from pipeline.durations import BatchSizes

# Sums are of whole numbers of this unit, so that no order of images, ranks or interruptions changes them.
_UNIT = 2.0**-24


def first_tracked_step(steps: int, n_train: int, batch_sizes: BatchSizes) -> int:
    """Where tracking begins: the second half of the steps, or the last two epochs if that is more.

    A young network doubts everything; two epochs show every image at least once.
    """
    before_two_epochs = batch_sizes.examples(steps) - 2 * n_train
    if before_two_epochs <= 0:
        return 0
    return min(steps // 2, batch_sizes.max_steps_for(before_two_epochs))


class ConfidenceTracker:
    """Sums of the probability of each image's label, over the passes in which the network trained on it.

    Args:
        n: images of the data set.
    """

    def __init__(self, n: int, device: torch.device) -> None:
        self._sums = torch.zeros(n, dtype=torch.int64, device=device)
        self._passes = torch.zeros(n, dtype=torch.int64, device=device)

    @torch.no_grad()
    def update(self, ids: Tensor, targets: Tensor, logits: Tensor) -> None:
        """Count a forward pass: sample ids and labels (B,), logits (B, n_classes)."""
        sure = logits.float().softmax(1).gather(1, targets[:, None])[:, 0]
        # Between two epochs an image may be twice in a batch.
        self._sums.index_add_(0, ids, (sure.nan_to_num(0.0) / _UNIT).round().long())
        self._passes.index_add_(0, ids, torch.ones_like(ids))

    def state_dict(self) -> dict[str, Tensor]:
        """The sums of all ranks; every rank must call it."""
        return {name: distributed.all_reduce_sum_(own.clone()).cpu() for name, own in self._tensors().items()}

    def load_state_dict(self, saved: dict[str, Any], *, is_main: bool) -> None:
        """Go on from saved sums, which one rank takes over for all."""
        for name, own in self._tensors().items():
            own.copy_(saved[name] if is_main else torch.zeros_like(own))

    def means(self) -> NDArray[np.float32]:
        """(N,): mean probability of the label, 0 to 1, over all ranks; NaN where no pass was counted."""
        sums, passes = self.state_dict().values()
        return np.asarray((sums.double() * _UNIT / passes).float().numpy())

    def _tensors(self) -> dict[str, Tensor]:
        return {"sums": self._sums, "passes": self._passes}
