"""The result of `look`: the images by suspicion, for a table, a notebook and a page."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import numpy as np
import pyarrow as pa
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from batchsieve.issues import LabelIssues
from batchsieve.looking.sources import jpeg
from batchsieve.suspect_table import SHOWN, NotebookOutput, check_shown
from pipeline.artifacts.files import atomic_path
from pipeline.artifacts.tables import protect_cells, write_csv
from pipeline.errors import InputError
from pipeline.reduction.near_duplicates import NearDuplicates
from pipeline.stats.formatting import aligned_lines

if TYPE_CHECKING:
    import pandas as pd

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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Look:
    """Result of `look` for N readable images, in the order of their paths.

    Attributes:
        issues: scores, reasons and suggested labels; `issues.label` and `issues.suggested_label` are (N,).
        path: (N,) str, in the folder or archive; of arrays the positions.
        sha256: (N,) str, of the files, or of the pixels.
        coordinates: (N, 2) float32, the t-SNE embedding.
        components: (N, d) float32, principal components of the features.
        class_names: (C,) in the order of the columns of `probabilities`.
        probabilities: (N, C) float32, out of fold; rows sum to 1.
        neighbors: (N, k) int32, the most similar other images by features, most similar first.
        near_duplicates: pairs of images that show nearly the same, see `pipeline.reduction.near_duplicates`.
        thumbnails: (N,) JPEG files, square.
        extractor: name of the network; empty for features as given.
        network: whose features these are, with the source of its weights, for people.
        unreadable: path -> reason, of images that were left out.
        name: of the folder or archive; "images" for arrays.
    """

    issues: LabelIssues
    path: NDArray[np.object_]
    sha256: NDArray[np.object_]
    coordinates: NDArray[np.float32]
    components: NDArray[np.float32]
    class_names: NDArray[Any]
    probabilities: NDArray[np.float32]
    neighbors: NDArray[np.int32]
    near_duplicates: NearDuplicates
    thumbnails: Sequence[bytes]
    extractor: str
    network: str
    unreadable: Mapping[str, str]
    name: str

    def __len__(self) -> int:
        """Return the number of readable images."""
        return len(self.path)

    def __repr__(self) -> str:
        return f"Look({self.name}: {self.headline})"

    @property
    def headline(self) -> str:
        """One sentence: how many labels look wrong, and the estimated share with its interval."""
        wrong = self.issues.wrong_share
        assert wrong is not None, "`look` estimates it"
        share, n = wrong.extrapolated, len(self)
        return (
            f"about {round(share.share * n):,} of {n:,} labels are wrong by estimate "
            f"({100 * wrong.confidence:g} % interval {round(share.low * n):,} to {round(share.high * n):,})"
        )

    def suspects(self) -> NDArray[np.int64]:
        """Return the rows of the images whose suggested label is another one, the most suspect first."""
        ranked = self.issues.ranked()
        is_suspect: NDArray[np.bool_] = self.issues.suggested_label != self.issues.label
        return ranked[is_suspect[ranked]]

    def duplicates(self, *, same_label: bool) -> NDArray[np.int64]:
        """Return the rows (P, 2) of near duplicates whose labels are equal, or different: then one of them is wrong."""
        pairs = self.near_duplicates.pairs
        equal: NDArray[np.bool_] = self.issues.label[pairs[:, 0]] == self.issues.label[pairs[:, 1]]
        chosen: NDArray[np.int64] = pairs[equal == same_label]
        return chosen

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return path, label, suggested_label, suggested_probability, score, is_issue and reason, by image."""
        columns = self.issues.columns()
        order = ("label", "suggested_label", "suggested_probability", "score", "is_issue", "reason")
        return {"path": self.path, **{name: columns[name] for name in order}}

    def to_pandas(self) -> "pd.DataFrame":
        """Return `columns` as a data frame with one row for each image, the most suspect first."""
        import pandas as pd

        frame = pd.DataFrame(self.columns(), index=pd.RangeIndex(len(self), name="image"))
        return frame.iloc[self.issues.ranked()]

    def show(self, n: int = SHOWN) -> NotebookOutput:
        """Return the first `n` suspects with pictures, which a notebook shows as the output of a cell.

        Raises:
            InputError: `n` is below 1.
        """
        check_shown(n)
        rows = self.suspects()[:n]
        return NotebookOutput(
            text="\n".join([repr(self), *self.lines(n)]),
            html=gallery(self.name, f": {self.headline}. {self.network}.", cards_of(self, rows, SmallPictures(self))),
        )

    def save(self, path: Path | str) -> Path:
        """Write all results: .html, an offline page with pictures and the map; .csv, the table of `to_pandas`.

        In the table an apostrophe precedes each text that a spreadsheet could run as a formula.

        Raises:
            InputError: the name ends in something else, or the file cannot be written.
        """
        file = Path(path)
        suffix = file.suffix.lower()
        if suffix not in (".html", ".csv"):
            raise InputError(f"{file}: its name must end in .html or .csv")
        if suffix == ".csv":
            order = self.issues.ranked()
            table = pa.table({name: values[order].tolist() for name, values in self.columns().items()})
            write_csv(file, protect_cells(table))
            return file
        from batchsieve.looking.page import page_of  # matplotlib and plotly

        with atomic_path(file) as temporary:
            temporary.write_text(page_of(self), encoding="utf-8", newline="\n")
        return file

    def lines(self, n: int) -> Iterator[str]:
        """Yield a heading and a line for each of the first `n` suspects, for a terminal."""
        columns = self.columns()
        rows = [
            ("path", "label", "suggested", "probability", "reason"),
            *(
                (
                    str(columns["path"][row]),
                    str(columns["label"][row]),
                    str(columns["suggested_label"][row]),
                    f"{columns['suggested_probability'][row]:.2f}",
                    # The part before it repeats the other columns.
                    str(columns["reason"][row]).rpartition("; ")[2],
                )
                for row in self.suspects()[:n].tolist()
            ),
        ]
        yield from aligned_lines(rows, left=len(rows[0]))
