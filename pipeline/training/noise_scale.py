"""The gradient noise scale: up to which batch size a larger batch saves steps.

McCandlish, Kaplan, Amodei and the OpenAI Dota Team, An Empirical Model of Large-Batch Training, 2018 (arXiv
1812.06162). Let G be the expected gradient of the loss and Sigma the covariance of one image's gradient. The simple
noise scale B_simple = tr(Sigma) / |G|^2, in images, approximates the critical batch size. At this size a run needs
about twice the fewest possible steps and twice the fewest possible images. Well below it, a batch twice as large is
nearly free: it halves the steps. Well above it, the steps hardly decrease, and the additional images are wasted. The
noise scale grows during a run.

Both terms are estimated at no cost from gradients at two batch sizes within one step (appendix A.1). The small batches
are parts of the batch, each a worker's or a micro-batch's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class NoiseSample:
    """Gradient norms of one optimizer step; before clipping, with the loss scale taken out.

    Attributes:
        small_batch: mean number of images of a part: B / k for a batch of B images in k parts.
        big_batch: B.
        mean_small_sq_norm: sum over the parts of b_i / B |g_i|^2, where g_i is the mean gradient of the b_i images of
            part i.
        big_sq_norm: |g|^2 of the mean gradient of the batch, g = sum of b_i / B g_i.
    """

    small_batch: float
    big_batch: int
    mean_small_sq_norm: float
    big_sq_norm: float

    def __post_init__(self) -> None:
        assert 0 < self.small_batch <= self.big_batch, (self.small_batch, self.big_batch)

    @property
    def is_usable(self) -> bool:
        """Whether it has two batch sizes and finite norms; False for a batch in one part or a skipped step."""
        finite = np.isfinite([self.mean_small_sq_norm, self.big_sq_norm]).all()
        return self.small_batch < self.big_batch and bool(finite)


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """The estimate over some steps.

    Attributes:
        samples: usable steps: with more than one part, and finite.
        gradient_sq_norm: estimate of |G|^2, in the gradients' unit squared; may be negative where the gradient is small
            against its noise. None without samples.
        noise_trace: estimate of tr(Sigma), in the same unit, per image; None without samples.
        critical_batch: B_simple in images; None if it cannot be estimated.
        low, high: the 95 % interval of B_simple in images; `high` is None if there is no upper bound. Both are None
            with fewer than two samples, and if |G|^2 is significantly negative (see `estimate_noise_scale` on training
            sets). The interval covers the sampling of images; steps whose true values differ widen it.
        reason: why `critical_batch` is None.
    """

    samples: int
    gradient_sq_norm: float | None = None
    noise_trace: float | None = None
    critical_batch: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None


def estimate_noise_scale(samples: Sequence[NoiseSample]) -> NoiseScale:
    """Estimate the noise scale over steps of one run, or of a part of it.

    For independent images E|g_i|^2 = |G|^2 + tr(Sigma) / b_i. With the weights b_i / B, the sum of b_i / B |g_i|^2 over
    parts of any sizes has the expectation |G|^2 + tr(Sigma) k / B, that of equal parts of b = B / k images. With
    E|g|^2 = |G|^2 + tr(Sigma) / B, unbiased estimates for each step are

        |G|^2 = (B |g|^2 - b mean|g_i|^2) / (B - b),    tr(Sigma) = (mean|g_i|^2 - |g|^2) / (1/b - 1/B).

    (An unweighted mean over unequal parts would belong to their harmonic mean size instead.) If BatchNorm couples the
    images of a group, this holds if every part consists of complete groups of one size; the result is then for this
    group size.

    The result is the ratio of the two means over steps. The ratio of a single step is biased, since its denominator may
    be small or negative by chance, and a mean of ratios is biased as well.

    If steps sample without replacement from N images with the gradient G_N, the estimate is of |G_N|^2 - tr(Sigma) / N:
    the scale of the loss over the population of images. The scale over these N images alone is B / (1 + B / N), which
    is hardly less while B is small relative to N. Once the images are memorized, |G_N|^2 vanishes and the estimate is
    negative.

    The interval is Fieller's (1954): all r for which tr(Sigma) - r |G|^2 does not differ from 0 by a t test over the
    steps. It is exact for normal estimates even if |G|^2 may be zero; then it is a lower bound. It assumes independent
    steps.
    """
    usable = [sample for sample in samples if sample.is_usable]
    if not usable:
        return NoiseScale(samples=0, reason="no step had its batch in more than one part and finite gradients")
    small, big, mean_small_norm, big_norm = np.array(
        [(sample.small_batch, sample.big_batch, sample.mean_small_sq_norm, sample.big_sq_norm) for sample in usable]
    ).T
    signal = (big * big_norm - small * mean_small_norm) / (big - small)
    noise = (mean_small_norm - big_norm) / (1 / small - 1 / big)
    gradient_sq_norm, noise_trace = float(signal.mean()), float(noise.mean())
    critical_batch = low = high = reason = None
    if len(usable) < 2:
        reason = "one step is not enough; two or more are needed"
    else:
        low, high = _fieller(noise, signal)
        if gradient_sq_norm > 0:
            critical_batch = noise_trace / gradient_sq_norm
        else:
            reason = f"in {len(usable)} steps the gradient does not stand out from its noise; measure more"
    return NoiseScale(
        samples=len(usable),
        gradient_sq_norm=gradient_sq_norm,
        noise_trace=noise_trace,
        critical_batch=critical_batch,
        low=low,
        high=high,
        reason=reason,
    )


def _fieller(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """Return the interval of mean(numerator) / mean(denominator), a ratio that is never negative; (n,) each."""
    from scipy import stats  # half a second to import; few runs measure the scale

    n = len(numerator)
    quantile = stats.t.ppf((1 + _CONFIDENCE) / 2, n - 1)
    variance = quantile**2 / n * np.cov(numerator, denominator)
    # The interval is where a r^2 - 2 b r + c <= 0.
    a = denominator.mean() ** 2 - variance[1, 1]
    b = numerator.mean() * denominator.mean() - variance[0, 1]
    c = numerator.mean() ** 2 - variance[0, 0]
    root = np.sqrt(max(b * b - a * c, 0.0))
    if a > 0:
        low, high = float((b - root) / a), float((b + root) / a)
        # If the denominator is significantly negative, no ratio of 0 or more fits.
        return (max(low, 0.0), high) if high >= 0 else (None, None)
    # The denominator may be zero: the interval is unbounded above and begins at the positive root, if 0 lies outside.
    return float((b - root) / a) if a < 0 < c else 0.0, None
