"""What a diagnosis says: one table, the comparisons behind it, the verdict and the advice."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pipeline.commands.diagnosing.bottleneck import (
    CONFIDENCE,
    THRESHOLD,
    Diagnosis,
    MedianEstimate,
    StepTimes,
    estimate,
)

_ADVICE = {
    "compute": "nothing else takes time: more workers, `precision: bf16` or `compile: true` on a GPU, or a smaller "
    "network or image make it faster",
    "communication": "send less often: larger batch_sizes, fewer workers with more images each, post_local_sgd (with a "
    "longer period, where it is used); send less: `communication.compression`; `reduction: ddp` hides more of it than "
    "`tree`",
    "input": "read faster: prepare the images no larger than the crop needs, keep them in memory (`prepare.storage: "
    "array`), or give each worker more cores to decode with (fewer workers a node)",
    "synchronization": "make the workers alike: see which rank is slow below, and what else its cores or GPU, its "
    "disk or its power limit serve",
}


def diagnosis_lines(
    diagnosis: Diagnosis, times: StepTimes, *, batch_size: int, single_rank_seconds: float | None
) -> Iterator[str]:
    """The report.

    Args:
        batch_size: images of a step over all ranks.
        single_rank_seconds: of a step in which one rank has the machine to itself; None with one rank, or if another
            process started all ranks.
    """
    yield f"{'part of a step':16} {'ms':>9} {'share':>7}  {CONFIDENCE:.0%} interval of the share"
    for name, seconds in diagnosis.parts.items():
        share = diagnosis.shares[name]
        yield f"{name:16} {1e3 * seconds.median:9.2f} {share.median:7.1%}  {share.low:.1%} to {share.high:.1%}"
    yield f"{'step':16} {1e3 * diagnosis.step.median:9.2f} {batch_size / diagnosis.step.median:,.0f} images/s"
    yield ""
    yield from _comparisons(diagnosis, times, single_rank_seconds)
    yield ""
    yield from verdict_lines(diagnosis)


def verdict_lines(diagnosis: Diagnosis) -> Iterator[str]:
    """What bounds the step, and what to do about it."""
    first, *others = diagnosis.candidates
    if others:
        yield f"verdict: undecided between {first} and {', '.join(others)}: their intervals do not tell them apart"
        yield "advice: measure for longer (--seconds), on a machine that does nothing else"
        return
    why = (
        f"no other part reaches {THRESHOLD:.0%} of a step"
        if first == "compute"
        else f"the largest part other than compute, and at least {THRESHOLD:.0%} of a step"
    )
    yield f"verdict: bound by {first} ({why})"
    yield f"advice: {_ADVICE[first]}"


def _comparisons(diagnosis: Diagnosis, times: StepTimes, single_rank_seconds: float | None) -> Iterator[str]:
    """Ways to train in pairs, in ms of a step."""
    full, local, synthetic = (_ms(values) for values in (times.full, times.local, times.synthetic))
    ranks = times.full.shape[1]
    yield f"real against synthetic images: {_text(local)} against {_text(synthetic)} ms"
    if ranks == 1:
        yield "one process: nobody to exchange gradients with, or to wait for"
        return
    yield f"exchange at every step against none: {_text(full)} against {_text(local)} ms"
    communication = diagnosis.parts["communication"].median
    ratio = f"{diagnosis.parts['compute'].median / communication:.1f}" if communication > 0 else "no communication seen"
    yield f"scaling ratio, computation to exposed communication: {ratio}"
    if single_rank_seconds is None:
        yield f"one rank alone against all {ranks}: not measured under your own torchrun, which started all of them"
    else:
        efficiency = single_rank_seconds / diagnosis.step.median
        seconds = f"{1e3 * single_rank_seconds:.2f} ms"
        yield f"one rank alone against all {ranks}: {seconds} a step, efficiency {efficiency:.0%}"
    own = np.median(times.local.mean(axis=-1), axis=0)
    slowest = int(own.argmax())
    yield (
        f"ranks without exchange: {1e3 * own.min():.2f} to {1e3 * own.max():.2f} ms, rank {slowest} the slowest, by "
        f"{own.max() / own.min() - 1:.0%}"
    )


def _ms(values: NDArray[np.float64]) -> MedianEstimate:
    """Of (rounds, ranks, steps) seconds: mean over steps and median over ranks, then over rounds."""
    return estimate(1e3 * np.median(values.mean(axis=-1), axis=1))


def _text(found: MedianEstimate) -> str:
    return f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"
