"""Report of a diagnosis: a table, the comparisons behind it, the verdict and the advice."""

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
from pipeline.stats.formatting import MISSING

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
