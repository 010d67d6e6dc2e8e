"""Exact evaluation: every image once, whatever the number of processes."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline import distributed
from pipeline.datasets.training_images import TrainingImages
from pipeline.distributed import Ranks
from pipeline.errors import explaining_out_of_memory
from pipeline.training.compiling import eager


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Attributes: `correct` (N,) bool per image; `loss` mean cross-entropy in nats."""

    correct: NDArray[np.bool_]
    loss: float

    @property
    def top1(self) -> float:
        """Share of images classified correctly, 0 to 1."""
        return float(self.correct.mean())

    def balanced_accuracy(self, labels: NDArray[np.int64]) -> float:
        """Mean over classes of the share classified correctly, 0 to 1."""
        return float(np.mean([self.correct[labels == label].mean() for label in np.unique(labels)]))


def rows_of_rank(n: int, ranks: Ranks) -> NDArray[np.int64]:
    """This rank's contiguous share of `n` rows; no padding, sizes differ by one at most."""
    return np.arange(n * ranks.rank // ranks.count, n * (ranks.rank + 1) // ranks.count)


@torch.inference_mode()
def evaluate(model: nn.Module, images: TrainingImages, labels: Tensor, *, batch_size: int, ranks: Ranks) -> Evaluation:
    """Classify all images; each rank takes its share and all ranks return the whole.

    Args:
        labels: (N,) int64 on the device.
        batch_size: images per forward pass.

    Whatever a network was trained in, it is evaluated in single precision.

    Raises:
        OutOfMemory: a pass does not fit the memory.
    """
    model.eval()
    correct = torch.zeros(len(images), dtype=torch.int32, device=labels.device)
    seen = torch.zeros_like(correct)
    loss = torch.zeros((), dtype=torch.float64, device=labels.device)
    rows = rows_of_rank(len(images), ranks)
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    in_full = distributed.float32_arithmetic(tf32=False)
    too_many = f"eval_batch_size: a pass of {batch_size} images does not fit the memory; give less"
    with explaining_out_of_memory(too_many), in_full, eager(), images.prefetch((ids, None) for ids in batches):
        for ids in batches:
            here = torch.from_numpy(ids).to(labels.device)
            logits = model(images.evaluation_batch(ids))
            correct[here] = (logits.argmax(1) == labels[here]).int()
            seen[here] += 1
            loss += F.cross_entropy(logits, labels[here], reduction="sum").double()
    for tensor in (correct, seen, loss):
        distributed.all_reduce_sum_(tensor)
    assert bool((seen == 1).all()), "an image was evaluated twice or not at all"
    return Evaluation(correct=correct.cpu().numpy().astype(np.bool_), loss=float(loss) / len(images))
