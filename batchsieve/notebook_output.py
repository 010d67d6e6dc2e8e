"""What functions return for people: HTML in a notebook, text in a terminal."""


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
