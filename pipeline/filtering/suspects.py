"""List the most suspect rows of a filter's points for a terminal, with the labels that the evidence suggests."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.stats.formatting import MISSING

_REASON_WIDTH = 72


def suspect_lines(points: pa.Table, n: int) -> Iterator[str]:
    """Yield a heading and a line for each of the first `n` dropped rows, the most suspect first.

    Args:
        points: as `points_table` returns them. A suggested label is shown where it differs from the label.
    """
    dropped = points.filter(pc.invert(points["keep"]))
    order = dropped.sort_by([("score", "descending"), ("sample_id", "ascending")]).slice(0, n)
    name = "path" if "path" in points.column_names else "sample_id"
    rows = [("score", name, "label", "suggested", "reason")]
    for row in order.to_pylist():
        suggested = row.get("suggested_label_name", row["label_name"])
        rows.append(
            (
                f"{row['score']:.3f}",
                str(row[name]),
                row["label_name"],
                MISSING if suggested == row["label_name"] else suggested,
                _shortened(row["reason"]),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _shortened(text: str) -> str:
    return text if len(text) <= _REASON_WIDTH else f"{text[: _REASON_WIDTH - 3]}..."
