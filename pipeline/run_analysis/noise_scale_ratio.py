"""The gradient noise scales of two sets of images at the same weights, and their ratio with an interval.

With symmetric wrong labels, a share a of all over K classes, the mean gradient is s G + (1 - s) U with
s = 1 - aK / (K - 1). G is the gradient of the correct labels, and U that of uniform labels, which is 0 where
predictions are uniform. If U is small and the covariance of one image's gradient is about the same, the noise scale
tr(Sigma) / |G|^2 is 1/s^2 times that of the correct labels (after Rolnick et al. 2017, arXiv 1705.10694). Both
assumptions may fail once the network is confident.

The estimates are those of `noise_scale`, from disjoint parts of each set at once. Their intervals come from leaving out
one part at a time (the jackknife; Efron and Stein 1981, doi:10.1214/aos/1176345462).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.batching import BatchSlice, GlobalBatch
from pipeline.training.gradients import TrainLoss
from pipeline.training.noise_scale import NoiseSample, NoiseScale, estimate_noise_scale

CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class PartNorms:
    """Inner products of the mean gradients g_i of k disjoint parts of a set of images, at the same weights.

    Attributes:
        part_size: images of each part.
        sq_norms: (k,) float64, |g_i|^2; k is 3 or more.
        dots: (k,) float64, g_i times the sum of all g_j.
    """

    part_size: int
    sq_norms: NDArray[np.float64]
    dots: NDArray[np.float64]

    @property
    def n_parts(self) -> int:
        return len(self.sq_norms)

    def sample(self) -> NoiseSample:
        """Return the set as one batch in k parts."""
        return self._sample(self.n_parts, float(self.sq_norms.sum()), float(self.dots.sum()))

    def without(self, part: int) -> NoiseSample:
        """Return the set without one of its parts."""
        of_part = float(self.sq_norms[part])
        rest = float(self.dots.sum() - 2 * self.dots[part]) + of_part
        return self._sample(self.n_parts - 1, float(self.sq_norms.sum()) - of_part, rest)

    def _sample(self, n_parts: int, sum_of_sq_norms: float, sq_norm_of_sum: float) -> NoiseSample:
        return NoiseSample(
            small_batch=self.part_size,
            big_batch=n_parts * self.part_size,
            mean_small_sq_norm=sum_of_sq_norms / n_parts,
            big_sq_norm=sq_norm_of_sum / n_parts**2,
        )


def measure_parts(
    model: nn.Module, train_loss: TrainLoss, sample_ids: NDArray[np.int64], *, parts: int, batch_size: int
) -> PartNorms:
    """Measure the gradients of the parts, and compute each of them twice, so that memory never holds all of them.

    BatchNorm is in evaluation mode, with the network's statistics, and there is no dropout: the loss depends only on
    the weights, and images are independent.

    Args:
        model: its weights and its mode stay as they are.
        sample_ids: (n,) distinct rows of the data set, in random order; the last n mod `parts` are left out.
        parts: 3 or more, at most n.
        batch_size: images per forward pass; changes the result only by rounding.
    """
    size, training = len(sample_ids) // parts, model.training
    assert parts > 2, parts
    assert size > 0, (len(sample_ids), parts)
    model.eval()
    try:
        groups = sample_ids[: parts * size].reshape(parts, size)
        total: Tensor | None = None
        sq_norms = []
        for gradient in (_mean_gradient(model, train_loss, group, batch_size) for group in groups):
            sq_norms.append(float(gradient @ gradient))
            total = gradient if total is None else total.add_(gradient)
        assert total is not None
        dots = [float(_mean_gradient(model, train_loss, group, batch_size) @ total) for group in groups]
    finally:
        model.train(training)
    return PartNorms(part_size=size, sq_norms=np.array(sq_norms), dots=np.array(dots))


def _mean_gradient(model: nn.Module, train_loss: TrainLoss, sample_ids: NDArray[np.int64], batch_size: int) -> Tensor:
    """Return the gradient of the mean loss over `sample_ids`, all parameters in one float64 vector."""
    batch = GlobalBatch(sample_ids=sample_ids, epochs=np.zeros_like(sample_ids))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64,
                        device=train_loss.labels.device)  # fmt: skip
    for rows in _slices(len(sample_ids), batch_size):
        chunk = BatchSlice(rows=rows, group_sizes=(rows.stop - rows.start,))
        loss = train_loss.summed_loss(model, batch, chunk) / len(sample_ids)
        gradients = torch.autograd.grad(loss, parameters)
        total += torch.cat([gradient.flatten() for gradient in gradients])
    return total


def _slices(n: int, size: int) -> Iterator[slice]:
    yield from (slice(begin, end) for begin, end in pairwise([*range(0, n, size), n]))


@dataclass(frozen=True, kw_only=True)
class ScaleRatio:
    """The noise scale of one set over that of another, at the same weights.

    Attributes:
        numerator, denominator: the two estimates, in images, without intervals.
        ratio: None if a gradient does not stand out from its noise.
        low, high: ends of the 95 % interval of `ratio`; None if a gradient does not stand out without one of its parts.
        reason: why `ratio` or its interval is None.
    """

    numerator: NoiseScale
    denominator: NoiseScale
    ratio: float | None
    low: float | None
    high: float | None
    reason: str | None


def scale_ratio(numerator: PartNorms, denominator: PartNorms) -> ScaleRatio:
    """Return the ratio of two noise scales with its interval, by Student's t on the logarithm.

    The variance of the logarithm is the sum of both jackknife variances. Sets that share images vary together, which
    makes the interval too wide. It covers the choice of the images, only at these weights.
    """
    from scipy import stats  # half a second to import

    of_all = [estimate_noise_scale([parts.sample()]) for parts in (numerator, denominator)]
    logs = [_log_scale(scale) for scale in of_all]
    without = ScaleRatio(
        numerator=of_all[0], denominator=of_all[1], ratio=None, low=None, high=None,
        reason="a gradient does not stand out from its noise; measure more images or earlier weights",
    )  # fmt: skip
    if logs[0] is None or logs[1] is None:
        return without
    difference = logs[0] - logs[1]
    estimate = replace(without, ratio=float(np.exp(difference)), reason=None)
    variances = [_jackknife_variance(parts) for parts in (numerator, denominator)]
    if variances[0] is None or variances[1] is None:
        reason = "without one of its parts a gradient does not stand out from its noise; measure more images"
        return replace(estimate, reason=reason)
    freedom = min(numerator.n_parts, denominator.n_parts) - 1
    width = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * (variances[0] + variances[1]) ** 0.5
    return replace(estimate, low=float(np.exp(difference - width)), high=float(np.exp(difference + width)))


def noise_scale_of(scale: NoiseScale) -> float | None:
    """Return tr(Sigma) / |G|^2 in images; None unless both estimates are above 0."""
    trace, sq_norm = scale.noise_trace, scale.gradient_sq_norm
    return trace / sq_norm if trace and sq_norm and trace > 0 and sq_norm > 0 else None


def _log_scale(scale: NoiseScale) -> float | None:
    value = noise_scale_of(scale)
    return None if value is None else float(np.log(value))


def _jackknife_variance(parts: PartNorms) -> float | None:
    logs = [_log_scale(estimate_noise_scale([parts.without(part)])) for part in range(parts.n_parts)]
    known = [value for value in logs if value is not None]
    if len(known) < len(logs):
        return None
    return float((parts.n_parts - 1) * np.var(known))
