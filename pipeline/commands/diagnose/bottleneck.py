"""Divide the measured time of a step into compute, input, synchronization and communication, and report it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from pipeline.stats.formatting import MISSING

THRESHOLD = 0.1
"""Share of a step above which a part other than compute bounds it.

Removing a smaller part would make training faster by a ninth at most, about the accuracy of times on a busy machine.
"""

CONFIDENCE = 0.9
"""Minimum probability with which an interval covers its median."""

_ADVICE = {
    "compute": "compute faster: use more workers, `precision: bf16` or `compile: true` on a GPU, or a smaller network "
    "or image",
    "communication": "send less often: use larger batch_sizes, fewer workers with more images each, or post_local_sgd "
    "with a longer period; send less: use `communication.compression`; `reduction: ddp` hides more communication than "
    "`tree`",
    "input": "read faster: prepare the images no larger than the crop needs, keep them in memory (`prepare.storage: "
    "array`), or give each worker more cores to decode with (fewer workers a node)",
    "synchronization": "find what slows the slowest rank above: other load on its cores, GPU or disk, or a power limit",
}


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of steps, each (rounds, ranks, steps), taken in turn within each round.

    Attributes:
        full: unchanged.
        local: without exchange of gradients; no rank waits for another.
        synthetic: like `local`, with images that take no time.
    """

    full: NDArray[np.float64]
    local: NDArray[np.float64]
    synthetic: NDArray[np.float64]

    def __post_init__(self) -> None:
        for times in (self.full, self.local, self.synthetic):
            assert times.ndim == 3, times.shape
            assert times.shape[:2] == self.full.shape[:2], times.shape
            assert (times > 0).all(), times


@dataclass(frozen=True, kw_only=True)
class MedianEstimate:
    """The median over rounds, and order statistics that cover it with probability `CONFIDENCE` or more."""

    median: float
    low: float
    high: float

    @property
    def has_sign(self) -> bool:
        """Whether the rounds show that a difference is above or below 0, or exactly 0 in all of them."""
        return self.low > 0 or self.high < 0 or self.low == self.high == 0


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The parts of a step's time.

    Attributes:
        step: seconds of a step.
        parts: `compute`, `input`, `synchronization`, `communication` -> seconds of a step. Within each round they add
            up to the step; noise can make one of them negative.
        shares: parts as shares of the step.
        candidates: the parts that may bound the step, the likeliest first; several if the rounds vary too much.
    """

    step: MedianEstimate
    parts: Mapping[str, MedianEstimate]
    shares: Mapping[str, MedianEstimate]
    candidates: tuple[str, ...]

    @property
    def decided(self) -> bool:
        """Whether one part bounds the step."""
        return len(self.candidates) == 1


def diagnose(times: StepTimes) -> Diagnosis:
    """Divide a step into parts by comparing the variants of training.

    Each round counts by the mean over its steps, so that rare costs count too. The typical rank is the lower median
    over ranks, so that one slow rank of two is not typical.

    * compute: the typical rank's step with synthetic images and without exchange;
    * input: how much longer its step is with real images;
    * synchronization: how much longer the longest step of all ranks is, for which the others would wait;
    * communication: how much longer the step is with exchange of gradients. Communication that the backward pass hides
      costs nothing and does not count.

    The largest of the last three bounds a step if its share is `THRESHOLD` or more; otherwise compute does. If an
    interval contains the threshold, or overlaps that of the largest part, both are candidates.
    """
    parts = {
        "compute": _typical(times.synthetic),
        "input": _typical(times.local) - _typical(times.synthetic),
        "synchronization": _longest(times.local) - _typical(times.local),
        "communication": _typical(times.full) - _longest(times.local),
    }
    step = _typical(times.full)
    shares = {name: estimate(seconds / step) for name, seconds in parts.items()}
    return Diagnosis(
        step=estimate(step),
        parts={name: estimate(seconds) for name, seconds in parts.items()},
        shares=shares,
        candidates=_candidates(shares),
    )


def estimate(values: NDArray[np.float64]) -> MedianEstimate:
    """Return the median and its interval of (rounds,) independent values of one distribution.

    The interval assumes no form of the distribution. The k-th smallest and the k-th largest of n values cover the
    median with probability 1 - 2 P(B < k), B ~ Binomial(n, 1/2) (David and Nagaraja 2003, Order Statistics, section
    7.1).
    """
    ordered, n = np.sort(values), len(values)
    # With few rounds even the extremes cover less than `CONFIDENCE`; no interval is wider.
    k = max([1, *(k for k in range(1, n // 2 + 1) if 1 - 2 * binom.cdf(k - 1, n, 0.5) >= CONFIDENCE)])
    return MedianEstimate(median=float(np.median(ordered)), low=float(ordered[k - 1]), high=float(ordered[n - k]))


def _typical(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (rounds,): the lower median over ranks of each rank's mean over steps."""
    typical: NDArray[np.float64] = np.quantile(times.mean(axis=-1), 0.5, axis=1, method="lower")
    return typical


def _longest(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (rounds,): the mean over steps of the longest time of all ranks."""
    longest: NDArray[np.float64] = times.max(axis=1).mean(axis=-1)
    return longest


def _candidates(shares: Mapping[str, MedianEstimate]) -> tuple[str, ...]:
    overheads = {name: share for name, share in shares.items() if name != "compute" and share.high >= THRESHOLD}
    if not overheads:
        return ("compute",)
    largest = max(overheads, key=lambda name: overheads[name].median)
    low = overheads[largest].low
    close = [name for name, share in overheads.items() if name != largest and share.high > low]
    if low >= THRESHOLD:
        return (largest, *close)
    # The likelier one first.
    return (largest, *close, "compute") if overheads[largest].median >= THRESHOLD else ("compute", largest, *close)


def diagnosis_lines(
    diagnosis: Diagnosis, times: StepTimes, *, batch_size: int, single_rank_seconds: float | None
) -> Iterator[str]:
    """Yield the lines of the report.

    Args:
        batch_size: images of a step over all ranks.
        single_rank_seconds: seconds of a step while one rank works and the others do nothing; None with one rank, or
            if another process started all ranks.
    """
    yield f"{'part of a step':16} {'ms':>9} {'share':>7}  {CONFIDENCE:.0%} interval of the share"
    for name, seconds in diagnosis.parts.items():
        share = diagnosis.shares[name]
        cells = (f"{1e3 * seconds.median:.2f}", f"{share.median:.1%}") if share.has_sign else (MISSING, MISSING)
        yield f"{name:16} {cells[0]:>9} {cells[1]:>7}  {share.low:.1%} to {share.high:.1%}"
    yield f"{'step':16} {1e3 * diagnosis.step.median:9.2f} {batch_size / diagnosis.step.median:,.0f} images/s"
    if not all(share.has_sign for share in diagnosis.shares.values()):
        yield f"{MISSING}: the interval contains 0, so the rounds do not show whether this part takes time"
    yield ""
    yield from _comparisons(diagnosis, times, single_rank_seconds)
    yield ""
    yield from verdict_lines(diagnosis)


def verdict_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield what bounds the step, and what to change."""
    first, *others = diagnosis.candidates
    if others:
        yield f"verdict: undecided between {first} and {', '.join(others)}: the intervals do not separate them"
        yield "advice: measure for longer (--seconds), on a machine without other load"
        return
    reason = (
        f"no other part reaches {THRESHOLD:.0%} of a step"
        if first == "compute"
        else f"the largest part other than compute, and at least {THRESHOLD:.0%} of a step"
    )
    yield f"verdict: bound by {first} ({reason})"
    yield f"advice: {_ADVICE[first]}"


def _comparisons(diagnosis: Diagnosis, times: StepTimes, single_rank_seconds: float | None) -> Iterator[str]:
    """Yield comparisons of two variants of training, in ms of a step."""
    full, local, synthetic = (_ms(values) for values in (times.full, times.local, times.synthetic))
    world_size = times.full.shape[1]
    yield f"real images: {_text(local)} ms; synthetic images: {_text(synthetic)} ms"
    if world_size == 1:
        yield "one process: no exchange of gradients, and no waiting"
        return
    yield f"with exchange: {_text(full)} ms; without exchange: {_text(local)} ms"
    communication = diagnosis.parts["communication"]
    ratio = "none measured"
    if communication.median > 0 and diagnosis.shares["communication"].has_sign:
        ratio = f"{diagnosis.parts['compute'].median / communication.median:.1f}"
    yield f"scaling ratio, computation to exposed communication: {ratio}"
    if single_rank_seconds is None:
        yield f"one rank of {world_size} alone: not measured, because your torchrun started all ranks"
    else:
        efficiency = single_rank_seconds / diagnosis.step.median
        seconds = f"{1e3 * single_rank_seconds:.2f} ms"
        yield f"one rank of {world_size} alone: {seconds} a step, efficiency {efficiency:.0%}"
    seconds_of_ranks = times.local.mean(axis=-1)
    by_rank = np.median(seconds_of_ranks, axis=0)
    slowest, fastest = int(by_rank.argmax()), int(by_rank.argmin())
    line = f"ranks without exchange: {1e3 * by_rank[fastest]:.2f} to {1e3 * by_rank[slowest]:.2f} ms"
    if estimate(seconds_of_ranks[:, slowest] - seconds_of_ranks[:, fastest]).low > 0:
        line += f"; rank {slowest} is the slowest, by {by_rank[slowest] / by_rank[fastest] - 1:.0%}"
    yield line


def _ms(values: NDArray[np.float64]) -> MedianEstimate:
    """Return the estimate in ms of (rounds, ranks, steps) seconds: mean over steps, medians over ranks and rounds."""
    return estimate(1e3 * np.median(values.mean(axis=-1), axis=1))


def _text(time: MedianEstimate) -> str:
    return f"{time.median:.2f} ({time.low:.2f} to {time.high:.2f})"
