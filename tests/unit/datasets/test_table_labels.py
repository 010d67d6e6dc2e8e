"""Labels of tables become class numbers, and some of them mean that there is no label."""

import pytest

from pipeline.datasets.image_set import Sample
from pipeline.datasets.table_labels import LabeledRows, LabelValue, Listing, list_images
from pipeline.errors import InputError


def _listed(values: list[LabelValue], names: list[str] | None) -> Listing:
    paths = [f"{row}.png" for row in range(len(values))]
    rows = LabeledRows(paths=paths, values=values, where=lambda row: f"line {row + 1}")
    return list_images({"": rows}, names, "here")


def test_a_text_of_minus_one_is_a_class_where_the_names_have_it() -> None:
    listing = _listed(["-1", "1", " -1"], ["-1", "1"])
    assert listing.splits[""] == [Sample(path=f"{row}.png", label=label) for row, label in enumerate([0, 1, 0])]


@pytest.mark.parametrize("names", [["cat", "dog"], ["-1", "1"], None])
@pytest.mark.parametrize("missing", [None, -1, "", " "])
def test_a_missing_label_is_refused(missing: LabelValue, names: list[str] | None) -> None:
    with pytest.raises(InputError, match=r"^line 3 has no label"):
        _listed([0, 1, missing], names)


@pytest.mark.parametrize("names", [["cat", "dog"], None])
def test_a_text_of_minus_one_is_no_label_without_such_a_class(names: list[str] | None) -> None:
    with pytest.raises(InputError, match=r"^line 3 has no label \('-1'\)"):
        _listed(["0", "1", "-1"], names)
