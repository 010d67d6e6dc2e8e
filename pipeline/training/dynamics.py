"""Training dynamics of each sample: mean confidence and logit margin of its label, and how often it was forgotten.

All come from the forward passes in which the network trained on the sample, so they cost no pass. They depend on no
order of samples, number of ranks or interruption.

A network fits a wrong label late, if at all. So the mean probability over the epochs (the confidence of Swayamdipta et
al., 2020, Dataset Cartography, section 2.1) stays low for labels that the trained network has memorized.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline import distributed
from pipeline.durations import BatchSizes

# Sums are of integer multiples of this unit. Sums of 2**22 margins of the largest size fit 64 bits.
_UNIT = 2.0**-24
_LARGEST_MARGIN = 2.0**16
# Epochs in a word: a bit each, without the two highest, so that no shift meets the sign.
_WORD = 62


@dataclass(frozen=True, kw_only=True)
class TrainingDynamics:
    """Training dynamics of each sample's label; NaN for samples not trained on.

    Attributes:
        margin: (N,) float32, mean over the epochs of the label's logit minus the largest other logit: the area under
            the margin (AUM; Pleiss et al. 2020, arXiv 2001.10528).
        forgetting: (N,) float32, number of epochs in which the sample was misclassified after an epoch in which it was
            not (Toneva et al. 2019, arXiv 1812.05159); infinite if it was never classified as its label.
    """

    margin: NDArray[np.float32]
    forgetting: NDArray[np.float32]


class _SampleSums:
    """Integer sums of each sample over the forward passes of a run, added over ranks when they are read.

    Args:
        n: samples of the data set.
        correct_words: words of 64 bits of each sample, next to its sum and its number of passes.
    """

    def __init__(self, n: int, device: torch.device, *, correct_words: int = 0) -> None:
        self._tensors = {"sums": torch.zeros(n, dtype=torch.int64, device=device)}
        self._tensors["passes"] = torch.zeros(n, dtype=torch.int64, device=device)
        if correct_words:
            self._tensors["correct"] = torch.zeros(n * correct_words, dtype=torch.int64, device=device)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the sums over all ranks; all ranks call it."""
        return {name: distributed.all_reduce_sum_(local.clone()).cpu() for name, local in self._tensors.items()}

    def load_state_dict(self, saved: dict[str, Any], *, is_main: bool) -> None:
        """Load saved sums, which rank 0 holds for all."""
        for name, tensor in self._tensors.items():
            tensor.copy_(saved[name] if is_main else torch.zeros_like(tensor))

    def _add(self, sample_ids: Tensor, values: Tensor) -> None:
        """Add a value (B,) to each sample (B,). A batch across two epochs may contain a sample twice."""
        self._tensors["sums"].index_add_(0, sample_ids, (values.double() / _UNIT).round().long())
        self._tensors["passes"].index_add_(0, sample_ids, torch.ones_like(sample_ids))


class ConfidenceTracker(_SampleSums):
    """Sums the probability of each sample's label over the forward passes in which the network trained on it.

    Args:
        n: samples of the data set.
    """

    def __init__(self, n: int, device: torch.device) -> None:
        super().__init__(n, device)

    @torch.no_grad()
    def update(self, sample_ids: Tensor, targets: Tensor, logits: Tensor) -> None:
        """Add a forward pass: sample ids and labels (B,), logits (B, n_classes)."""
        self._add(sample_ids, logits.float().softmax(1).gather(1, targets[:, None])[:, 0].nan_to_num(0.0))

    def result(self) -> NDArray[np.float32]:
        """Return the mean probability of each label, (N,) float32 from 0 to 1, NaN if not seen; all ranks call it."""
        sums, passes = self.state_dict().values()
        return np.asarray((sums.double() * _UNIT / passes).float().numpy())


class DynamicsTracker(_SampleSums):
    """Records the margins of a run, from its first step on; a sample occurs once in an epoch.

    Args:
        n: samples of the data set.
        n_epochs: epochs that the run begins.
    """

    def __init__(self, n: int, n_epochs: int, device: torch.device) -> None:
        # One bit per epoch: a rank sees a sample in some epochs only, so the order of its predictions is known only
        # after the sum over all ranks.
        self._n_epochs, self._n_words = n_epochs, -(-n_epochs // _WORD)
        super().__init__(n, device, correct_words=self._n_words)

    @torch.no_grad()
    def update(self, sample_ids: Tensor, epochs: Tensor, targets: Tensor, logits: Tensor) -> None:
        """Add a forward pass: sample ids, epochs and labels (B,), logits (B, n_classes)."""
        logits, columns = logits.float(), targets[:, None]
        others = logits.scatter(1, columns, -torch.inf).amax(1)
        margins = logits.gather(1, columns)[:, 0] - others
        self._add(sample_ids, margins.nan_to_num(0.0).clamp(-_LARGEST_MARGIN, _LARGEST_MARGIN))
        words = sample_ids * self._n_words + epochs // _WORD
        self._tensors["correct"].index_add_(0, words, (margins > 0).long() << epochs % _WORD)

    def result(self) -> TrainingDynamics:
        """Return the dynamics of all samples; all ranks call it."""
        sums, passes, words = (tensor.numpy() for tensor in self.state_dict().values())
        with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: a sample not trained on
            margin = (sums * _UNIT / passes).astype(np.float32)
        return TrainingDynamics(margin=margin, forgetting=_forgetting(self._by_epoch(words), passes))

    def _by_epoch(self, words: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
        """Return for each epoch which samples were classified as their label: (N,)."""
        table = words.reshape(-1, self._n_words)
        return [(table[:, epoch // _WORD] >> epoch % _WORD & 1).astype(bool) for epoch in range(self._n_epochs)]


def _forgetting(correct: list[NDArray[np.bool_]], passes: NDArray[np.int64]) -> NDArray[np.float32]:
    """Count for each sample the correct epochs that a wrong one follows; its epochs are the first of `passes` (N,)."""
    events, learned = np.zeros(len(passes), dtype=np.float32), np.zeros(len(passes), dtype=bool)
    previous = learned
    for epoch, current in enumerate(correct):
        events += previous & ~current & (epoch < passes)
        learned, previous = learned | current, current
    return np.where(passes == 0, np.nan, np.where(learned, events, np.inf)).astype(np.float32)


def first_tracked_step(steps: int, n_train: int, batch_sizes: BatchSizes) -> int:
    """Return the first step to track: the second half of the steps, or the last two epochs if that is more.

    Early probabilities are low for every label. Two epochs show every sample at least once.
    """
    before_two_epochs = batch_sizes.examples(steps) - 2 * n_train
    if before_two_epochs <= 0:
        return 0
    return min(steps // 2, batch_sizes.max_steps_for(before_two_epochs))
