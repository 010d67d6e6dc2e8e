"""What functions return for people: HTML in a notebook, text in a terminal."""

from collections.abc import Iterator, Sequence


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


def aligned_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows of equally many cells as lines with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
