"""What the results of `find_issues` and `sieve` share: ranks, the table, and what a notebook shows."""

import html
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from batchsieve.arrays import checked_integer
from pipeline.errors import InputError
from pipeline.stats.formatting import aligned_lines

if TYPE_CHECKING:
    import pandas as pd

    from batchsieve.looking.sources import Images

SHOWN = 12
"""Samples that `show` returns by default."""

_BRIEF = 5  # rows of a result that a notebook shows by itself


class NotebookOutput:
    """Output of a cell: a notebook shows the HTML, a terminal the text.

    Args:
        text: without a line break at its end.
        html: part of a page, without scripts.
    """

    def __init__(self, *, text: str, html: str) -> None:
        self._text, self._html = text, html

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


class SuspectTable(ABC):
    """Scores of N samples with their evidence."""

    score: NDArray[np.float64]

    @abstractmethod
    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns of the table, (N,) each, by sample."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.score)

    def ranked(self) -> NDArray[np.int64]:
        """Return the positions (N,) of the samples, the most suspect first; equal scores keep the order of samples."""
        return np.argsort(-self.score, kind="stable")

    def to_pandas(self) -> "pd.DataFrame":
        """Return `columns` as a data frame with one row for each sample, the most suspect first.

        The index, named `sample`, is the position in the input arrays.
        """
        import pandas as pd

        frame = pd.DataFrame(self.columns(), index=pd.RangeIndex(len(self), name="sample"))
        return frame.iloc[self.ranked()]

    def show(self, n: int = SHOWN, *, images: "Images | None" = None) -> NotebookOutput:
        """Return the `n` most suspect samples, which a notebook shows as the output of a cell.

        Each has label, suggested label, score and reason. With images it has its picture, else it is a row of a table.

        Args:
            n: at least 1.
            images: those of the N samples, as uint8 (N, H, W, 3), RGB, or N PIL images.

        Raises:
            InputError: `n` is below 1, or `images` are no images or not N.
        """
        check_shown(n)
        rows = self.ranked()[:n]
        text = "\n".join([repr(self), *self._lines(rows)])
        return NotebookOutput(text=text, html=self._table(rows) if images is None else self._gallery(rows, images))

    def _repr_html_(self) -> str:
        """Show the most suspect samples in notebooks."""
        return self._table(self.ranked()[:_BRIEF])

    def _lines(self, rows: NDArray[np.int64]) -> list[str]:
        columns = self._with_positions()
        shown = [name for name in ("sample", "label", "suggested_label", "score", "reason") if name in columns]
        cells = [[_cell(columns[name][row]) for name in shown] for row in rows.tolist()]
        return [*aligned_lines([shown, *cells], left=len(shown))]

    def _table(self, rows: NDArray[np.int64]) -> str:
        columns = self._with_positions()
        head = "".join(f"<th>{name}</th>" for name in columns)
        cells = [
            "".join(f"<td>{html.escape(_cell(values[row]))}</td>" for values in columns.values())
            for row in rows.tolist()
        ]
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        return f"<p>{html.escape(repr(self))}</p><table><tr>{head}</tr>{body}</table>"

    def _gallery(self, rows: NDArray[np.int64], images: "Images") -> str:
        # Pictures need packages that arrays do not.
        from batchsieve.looking.result import gallery, jpeg_uri
        from batchsieve.looking.sources import thumbnails_of

        columns = self.columns()
        label, suggested = columns["label"], columns.get("suggested_label", columns["label"])
        probability = columns.get("suggested_probability")
        cards = [
            {
                "row": row,
                "picture": jpeg_uri(thumbnail),
                "path": f"sample {row}, score {self.score[row]:.3f}",
                "label": str(label[row]),
                "suggested": str(suggested[row]),
                "probability": "" if probability is None else f"{100 * probability[row]:.0f} %",
                "reason": str(columns["reason"][row]),
                "neighbors": [],
            }
            for row, thumbnail in zip(rows.tolist(), thumbnails_of(images, rows.tolist(), len(self)), strict=True)
        ]
        return gallery(repr(self), "", cards)

    def _with_positions(self) -> dict[str, NDArray[Any]]:
        return {"sample": np.arange(len(self)), **self.columns()}


def check_shown(n: int) -> None:
    """Check a number of samples to show.

    Raises:
        InputError: it is no integer, or below 1.
    """
    n = checked_integer(n, "n")
    if n < 1:
        raise InputError(f"n: {n}; give 1 or more")


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float | np.floating) else str(value)
