"""What sibling studies say of the best warm-up, as a table and a sentence."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.stats.estimates import Estimate
from pipeline.stats.study_tables import Table, table_of
from pipeline.stats.wording import NOTHING, count, number, plural


def warmup_table(laws: Sequence[Mapping[str, Any]], confidence: float) -> Table:
    """The best warm-up of each batch size, of `warmup_laws`."""
    rows = [
        (
            ", ".join(law["studies"]),
            law["model"],
            law["arm"],
            number(law["learning_rate"]),
            number(law["weight_decay"]),
            count(best["batch_size"]),
            number(best["of_means"]) + (", the longest tried" if best["at_end"] else ""),
            number(best["by_seed"]["mean"]),
            number_interval(Estimate(**best["by_seed"])),
            count(best["by_seed"]["n"]),
        )
        for law in laws
        for best in law["best"]
    ]
    return table_of(
        "studies; model; arm; learning rate; weight decay; batch size; best warm-up by mean top-1 (epochs); "
        f"mean of the seeds' best (epochs); {100 * confidence:g} % interval (epochs); n (seeds)",
        rows,
        text="studies; model; arm",
    )


def slope_sentence(law: Mapping[str, Any], confidence: float) -> str:
    """How the best warm-up of one of `warmup_laws` grows with the batch, or why that cannot be told."""
    what = f"{law['model']}, arm {law['arm']}, learning rate {law['learning_rate']:g}"
    what += f", weight decay {law['weight_decay']:g}: "
    if len(law["best"]) < 2:
        return f"{what}one batch size tells of no growth."
    grows = Estimate(**law["per_doubling"])
    found = f"{what}as the batch doubles the best warm-up grows by {number(grows.mean)} epochs"
    found += f" ({_certainty(grows, confidence)})"
    if law["slope"] is None:
        found += "; it is no power of the batch size, since for some seed no warm-up at all is best at some batch size."
    else:
        power = Estimate(**law["slope"])
        found += f", which is as the batch size to the power of {power.mean:.2f} ({_certainty(power, confidence)})."
    return f"{found}{_at_the_end(law)}"


def _certainty(slope: Estimate, confidence: float) -> str:
    if slope.low is None:
        return f"all {slope.n} seeds agree on the warm-ups tried, hence no interval" if slope.n > 1 else "n = 1 seed"
    return f"{100 * confidence:g} % interval {number_interval(slope)}, n = {plural(slope.n, 'seed')}"


def _at_the_end(law: Mapping[str, Any]) -> str:
    """A longer warm-up than those tried may be better: the power is then of the end of what was tried."""
    sizes = [count(best["batch_size"]) for best in law["best"] if best["seeds_at_end"]]
    if not sizes:
        return ""
    end = "the best of some seed is the longest warm-up tried; a longer one may be better."
    *others, last = sizes
    named = f"batch sizes {', '.join(others)} and {last}" if others else f"batch size {last}"
    return f" At {named} {end}"


def number_interval(estimate: Estimate, shown: Callable[[float | None], str] = number) -> str:
    """`1.2 to 3.4`, or why there is none; `shown` writes an end."""
    if estimate.low is not None:
        return f"{shown(estimate.low)} to {shown(estimate.high)}"
    return "all seeds agree" if estimate.n > 1 else NOTHING
