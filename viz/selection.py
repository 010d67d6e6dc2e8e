"""Chosen images as a CSV file for people and spreadsheets."""

import csv
import io
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

from pipeline.artifacts.planted import PLANTED_COLUMN
from viz.data import Points
from viz.rules import Verdict

COLUMNS = ("path", "sha256", "label_name", "predicted_name", "score", "keep", "reason")

_PLACES = Decimal("1e-6")
# Full-width forms too: spreadsheets in East Asian settings read them as the plain ones.
_STARTS = tuple("=+-@\t\r\n＝＋－＠'")


def selection_csv(points: Points, verdict: Verdict, rows: Sequence[int]) -> str:
    """The images in `rows`, in that order, under a header of `COLUMNS`.

    All cells are quoted and lines end with a line feed. `score` has six places, a half rounded up,
    and `keep` is true or false, human decisions included. A cell that begins with `=`, `+`, `-`, `@`
    (full-width ones too), a tab or a line break would run as a formula in a spreadsheet
    (OWASP, "CSV Injection"): an apostrophe is put before it, and before cells that begin with one, so
    that whoever reads the file back takes one leading apostrophe away and has the exact text.
    Where labels were changed on purpose, a last column says in every row how many.

    The button of the exported page gives the same bytes; see assets/csv.js.
    """
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
    n_planted = [] if points.true_labels is None else [str(points.planted.sum())]
    writer.writerow([*COLUMNS, *([PLANTED_COLUMN] if n_planted else [])])
    for row in rows:
        cells = (
            points.paths[row].as_py(),
            points.sha256[row].as_py(),
            points.name(row),
            points.class_names[int(points.predicted[row])],
            # As JavaScript's toFixed has it: of the exact value, and a tie goes up.
            str(Decimal(float(verdict.scores[row])).quantize(_PLACES, ROUND_HALF_UP)),
            "true" if verdict.keep[row] else "false",
            points.reasons[row].as_py(),
            *n_planted,
        )
        writer.writerow([_harmless(cell) for cell in cells])
    return file.getvalue()


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_STARTS) else cell
