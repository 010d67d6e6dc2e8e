"""The best batch size of each learning rate, as a table."""

from collections.abc import Mapping
from typing import Any

from pipeline.reporting.warmup_tables import number_interval
from pipeline.stats.estimates import Estimate
from pipeline.stats.study_tables import Table, setting_cells, setting_heads, table_of
from pipeline.stats.wording import count, number


def best_batch_table(study: Mapping[str, Any], confidence: float) -> Table:
    """Of each arm at each rate; the head of the size by mean top-1 is the last of the setting's."""
    rows = [
        (
            row["arm"],
            *_of_setting(row, study),
            ", ".join(count(round(size)) for size in row["of_seeds"]),
            _size(row["by_seed"]["mean"]),
            number_interval(Estimate(**row["by_seed"]), _size),
            count(row["by_seed"]["n"]),
            count(row["seeds_at_end"]),
        )
        for row in study["best_batch"]
    ]
    heads = setting_heads(study["varying"]).replace("batch size", "best batch size by mean top-1")
    return table_of(
        f"arm; {heads}; each seed's best; geometric mean of the seeds' best; {100 * confidence:g} % interval; "
        "n (seeds); seeds at an end of the sizes tried",
        rows,
        text="arm; model; each seed's best",
    )


def _of_setting(row: Mapping[str, Any], study: Mapping[str, Any]) -> list[str]:
    *cells, size = setting_cells(row["setting"], study["varying"])
    if not row["at_end"]:
        return [*cells, size]
    end = "smallest" if row["of_means"] == row["batch_sizes"][0] else "largest"
    return [*cells, f"{size}, the {end} tried"]


def _size(images: float | None) -> str:
    """Between the sizes tried; four significant digits, but no power of ten."""
    return number(images) if images is None or images < 1000 else count(round(images))
