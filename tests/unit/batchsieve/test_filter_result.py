"""The result of `batchsieve.sieve` on features and on images: the keep mask, scores, suggestions and reasons."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from batchsieve import FilterResult, InputError, KeepMask, filtering, sieve
from batchsieve.evidence import neighbor_rows
from tests.fixtures.looking import NETWORK, colored, write_weights
from tests.fixtures.projects import class_blobs

_ON_COMPONENTS = {"name": "dbscan", "space": "components"}


@pytest.fixture(scope="module")
def planted() -> tuple[FilterResult, np.ndarray]:
    """Return the result for features of three classes, and the right labels; the labels of rows 3 and 10 are wrong."""
    features, truth = class_blobs(np.random.default_rng(0), n_classes=3, per_class=20, dimensions=6)
    names = np.array(["ant", "bee", "<c>"])
    labels = truth.copy()
    labels[[3, 10]] = (truth[[3, 10]] + 1) % 3
    keep = sieve(10 * features, names[labels], scorer=_ON_COMPONENTS, drop_fraction=2 / 60)
    return keep.result, names[truth]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


def test_dropped_samples_rank_first_with_their_right_label(planted: tuple[FilterResult, np.ndarray]) -> None:
    result, truth = planted
    assert np.flatnonzero(~result.keep).tolist() == [3, 10]
    np.testing.assert_array_equal(result.score > 0.5, ~result.keep)
    assert set(result.ranked()[:2].tolist()) == {3, 10}
    assert result.suggested_label is not None
    assert result.suggested_label.tolist() == truth.tolist()
    assert result.suggested_probability is not None
    assert result.suggested_probability.min() >= 0.8
    assert f"of 10 nearest neighbors are {truth[3]}" in result.reason[3]


def test_the_table_has_the_columns_and_the_order_of_suspicion(planted: tuple[FilterResult, np.ndarray]) -> None:
    result, _ = planted
    frame = result.to_pandas()
    suggestion = ["suggested_label", "suggested_probability"]
    assert frame.columns.tolist() == ["label", "score", "keep", *suggestion, "reason"]
    assert set(frame.index[:2]) == {3, 10}
    assert frame["keep"].tolist() == [False] * 2 + [True] * 58


def test_the_mask_is_an_array_that_shows_its_evidence(planted: tuple[FilterResult, np.ndarray]) -> None:
    result, truth = planted
    keep = KeepMask(result)
    assert keep.dtype == np.bool_
    assert (keep.shape, keep.sum()) == ((60,), 58)
    np.testing.assert_array_equal(truth[keep], truth[result.keep])
    assert type(~keep) is type(keep & keep) is np.ndarray
    assert keep.to_pandas().equals(result.to_pandas())
    assert repr(keep.show(2)) == repr(result.show(2))
    keep[3] = True  # by hand
    assert not result.keep[3]
    without: Any
    for without in (keep[:2], keep.copy()):
        with pytest.raises(AttributeError):
            without.show()


def test_a_pickled_mask_has_its_evidence(planted: tuple[FilterResult, np.ndarray]) -> None:
    keep = KeepMask(planted[0])
    keep[3] = True
    again = pickle.loads(pickle.dumps(keep))
    assert again.tolist() == keep.tolist()
    assert again.to_pandas().equals(keep.to_pandas())
    assert type(pickle.loads(pickle.dumps(keep[:2]))) is np.ndarray


def test_a_mask_needs_no_neighbors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their search takes most of the time for a million samples."""
    searches = []

    def counted(*arguments: Any, **options: Any) -> Any:
        searches.append(arguments)
        return neighbor_rows(*arguments, **options)

    monkeypatch.setattr(filtering, "neighbor_rows", counted)
    features = np.random.default_rng(0).normal(size=(50, 3))
    keep = sieve(features, np.arange(50) % 2, scorer=_ON_COMPONENTS, drop_fraction=0.1)
    assert (keep.result.score > 0.5).tolist() == (~keep).tolist()
    assert not searches
    keep.show(), keep.to_pandas()
    assert len(searches) == 1


def test_a_single_class_has_no_suggested_labels() -> None:
    features = np.random.default_rng(0).normal(size=(50, 3))
    result = sieve(features, np.zeros(50, int), scorer=_ON_COMPONENTS).result
    assert result.suggested_label is None
    assert "suggested_label" not in result.to_pandas()
    assert repr(result.show(1)).splitlines()[1].split() == ["sample", "label", "score", "reason"]


def test_given_probabilities_suggest_the_most_probable_class() -> None:
    labels = np.arange(50) % 2
    probabilities = np.where(np.eye(2)[labels] > 0, 0.9, 0.1)
    probabilities[11] = 0.2, 0.8
    probabilities[12] = 0.3, 0.7
    features = np.random.default_rng(0).normal(size=(50, 3))
    result = sieve(features, labels, probabilities, scorer="margin", threshold=0.5).result
    assert result.suggested_label is not None
    assert np.flatnonzero(result.suggested_label != labels).tolist() == [12]
    assert result.suggested_probability is not None
    assert result.suggested_probability[[11, 12]].tolist() == pytest.approx([0.8, 0.7])


@pytest.mark.parametrize("as_pil", [False, True])
def test_images_are_filtered_by_a_network_and_shown(weights: Path, as_pil: bool) -> None:
    images, labels = colored()
    labels[4] = "blue"
    given: Any = [Image.fromarray(pixels) for pixels in images] if as_pil else images
    keep = sieve(
        given, labels, network=NETWORK, weights=weights, scorer={"name": "knn_agreement", "k": 5}, drop_fraction=1 / 30
    )
    assert np.flatnonzero(~keep).tolist() == [4]
    page = keep.show(3)._repr_html_()
    assert page.count("data:image/jpeg;base64,") == page.count("<article") == 3
    assert "<s>blue</s> → <b>red</b>" in page


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"features": np.zeros((12, 2)), "network": NETWORK}, "network"),
        ({"network": "resnet9"}, "network"),
        ({"network": "no_such"}, "network"),
        ({"network": NETWORK, "weights": "no_such.safetensors"}, "weights"),
        ({"features": np.zeros((12, 8, 8, 3))}, "images"),
        ({"features": np.zeros((11, 8, 8, 3), dtype=np.uint8)}, "images"),
        ({"network": NETWORK}, "features"),  # of equal images
    ],
)
def test_images_that_cannot_be_filtered_are_refused(options: dict[str, Any], key: str, weights: Path) -> None:
    given = {"features": np.zeros((12, 8, 8, 3), dtype=np.uint8), "labels": np.arange(12) % 2, "eps": 1.0}
    if key == "features":
        given["weights"] = weights
    with pytest.raises(InputError) as raised:
        sieve(**{**given, "scorer": _ON_COMPONENTS, **options})
    assert str(raised.value).partition(": ")[0] == key
