"""Lines and decisions of the rows that `filter-features` drops."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.artifacts.overrides import Override
from pipeline.stats.formatting import MISSING, aligned_lines

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
    yield from aligned_lines(rows, left=len(rows[0]))


def filter_decisions(points: pa.Table) -> Iterator[Override]:
    """Yield the decision on each image; equal points give equal bytes, so there is no time.

    Args:
        points: as `points_table` returns them, with path and sha256.
    """
    names = ["path", "sha256", "keep", "reason", "label_name", "corrected_label_name"]
    for line, row in enumerate(points.select(names).to_pylist(), start=2):
        relabeled = row["keep"] and row["corrected_label_name"] != row["label_name"]
        yield Override(
            path=row["path"],
            sha256=row["sha256"],
            decision="relabel" if relabeled else "keep" if row["keep"] else "drop",
            label=row["corrected_label_name"] if relabeled else "",
            note="" if row["keep"] else f"filter-features: {row['reason']}",
            timestamp="",
            line=line,
        )


def _shortened(text: str) -> str:
    return text if len(text) <= _REASON_WIDTH else f"{text[: _REASON_WIDTH - 3]}..."
