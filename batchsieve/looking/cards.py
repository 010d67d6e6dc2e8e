"""Cards of suspect images: picture, label, suggested label and reason, as a part of a page."""

import base64
import io
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from batchsieve.looking.sources import jpeg

if TYPE_CHECKING:
    from batchsieve.looking.result import Look

_SMALL = 64  # pixels
_SHOWN_NEIGHBORS = 4


class SmallPictures:
    """Small pictures as data URIs, each encoded once."""

    def __init__(self, look: "Look") -> None:
        self._look = look
        self._encoded: dict[int, str] = {}

    def __getitem__(self, row: int) -> str:
        if row not in self._encoded:
            with Image.open(io.BytesIO(self._look.thumbnails[row])) as picture:
                self._encoded[row] = jpeg_uri(jpeg(picture, _SMALL))
        return self._encoded[row]


def cards_of(look: "Look", rows: NDArray[np.int64], small: SmallPictures) -> list[dict[str, Any]]:
    """Return what the template `card.html` shows of each of these images, with its nearest neighbors."""
    issues = look.issues
    return [
        {
            "row": row,
            "picture": jpeg_uri(look.thumbnails[row]),
            "path": str(look.path[row]),
            "label": str(issues.label[row]),
            "suggested": str(issues.suggested_label[row]),
            "probability": f"{100 * issues.suggested_probability[row]:.0f} %",
            "reason": str(issues.reason[row]),
            "neighbors": [
                {"picture": small[other], "label": str(issues.label[other]), "path": str(look.path[other])}
                for other in look.neighbors[row, :_SHOWN_NEIGHBORS].tolist()
            ],
        }
        for row in rows.tolist()
    ]


def gallery(title: str, text: str, cards: Sequence[Mapping[str, Any]]) -> str:
    """Return cards as a part of a page, for notebooks.

    Args:
        title: in bold.
        text: after it.
        cards: as `cards_of` returns them.
    """
    return template("gallery.html").render(title=title, text=text, cards=cards, style=Markup(asset("look.css")))


@cache
def template(name: str) -> jinja2.Template:
    """Return a template of this package."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("batchsieve.looking", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)


def asset(name: str) -> str:
    """Return the text of a file of this package."""
    return files("batchsieve.looking").joinpath("assets", name).read_text(encoding="utf-8")


def jpeg_uri(content: bytes) -> str:
    """Return a JPEG file as a data URI."""
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode('ascii')}"
