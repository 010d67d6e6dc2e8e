"""What sibling studies say of the best warm-up, as a table and a sentence."""

from collections.abc import Mapping, Sequence
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
            _number_interval(Estimate(**best["by_seed"])),
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
    if law["slope"] is None:
        return f"{what}no power of the batch size, since for some seed no warm-up at all is best at some batch size."
    slope = Estimate(**law["slope"])
    certainty = f"{100 * confidence:g} % interval {_number_interval(slope)}, n = {plural(slope.n, 'seed')}"
    if slope.low is None:
        agreed = f"all {slope.n} seeds agree on the warm-ups tried, hence no interval"
        certainty = agreed if slope.n > 1 else "n = 1 seed"
    found = f"{what}best warm-up in epochs ~ batch size to the power of {slope.mean:.2f} ({certainty})."
    return f"{found}{_at_the_end(law)}"


def _at_the_end(law: Mapping[str, Any]) -> str:
    """A longer warm-up than those tried may be better: the power is then of the end of what was tried."""
    sizes = [count(best["batch_size"]) for best in law["best"] if best["seeds_at_end"]]
    if not sizes:
        return ""
    end = "the best of some seed is the longest warm-up tried; a longer one may be better."
    return f" At batch size {', '.join(sizes)} {end}"


def _number_interval(estimate: Estimate) -> str:
    if estimate.low is not None:
        return f"{number(estimate.low)} to {number(estimate.high)}"
    return "all seeds agree" if estimate.n > 1 else NOTHING
