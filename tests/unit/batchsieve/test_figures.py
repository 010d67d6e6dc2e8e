"""The figures of notebooks: pictures that a notebook shows and that can be saved."""

import base64
import io
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from batchsieve import InputError, figures


def test_a_picture_is_a_png_in_a_notebook_and_in_a_file(tmp_path: Path) -> None:
    picture = figures.picture(Figure(figsize=(2, 1)), width=320, dpi=50)
    shown, metadata = picture._repr_png_()
    assert metadata == {"width": 320}
    with Image.open(io.BytesIO(base64.b64decode(shown))) as image:
        assert image.format == "PNG"
    assert picture.save(tmp_path / "a.png").read_bytes() == base64.b64decode(shown)
    with pytest.raises(InputError, match=r"a\.svg"):
        picture.save(tmp_path / "a.svg")
