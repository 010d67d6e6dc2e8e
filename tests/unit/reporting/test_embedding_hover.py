import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from pipeline.paths import DataPaths
from pipeline.reporting.embedding_hover import DECISIONS, GRID, MAX_POINTS, EmbeddingPicture, embedding_pictures
from pipeline.reporting.inputs import NetworkInputs, ReportInputs, load_report_inputs
from tests.fixtures.planted import say_planted
from tests.fixtures.report import N_TEST, N_TRAIN, params_with, write_artifacts


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> ReportInputs:
    params, data = params_with(["resnet18"], seeds=[0]), DataPaths(root=tmp_path_factory.mktemp("data"))
    write_artifacts(data, params)
    say_planted(data, {3: 0})
    return load_report_inputs(params, data)


def _pictures(inputs: ReportInputs, network: NetworkInputs | None = None) -> tuple[EmbeddingPicture, EmbeddingPicture]:
    pictures = embedding_pictures(network or inputs.networks[0], inputs)
    return pictures["train"], pictures["test"]


def test_a_training_image_has_path_labels_and_decision(inputs: ReportInputs) -> None:
    (network,) = inputs.networks
    by_hand = replace(network, keep=network.keep | (np.arange(N_TRAIN) == N_TRAIN - 1))
    points = _pictures(inputs, by_hand)[0].points
    assert sorted(points.name) == sorted(network.path)
    found = {name: row for row, name in enumerate(points.name)}
    for row, decision in ((3, "kept"), (N_TRAIN - 2, "dropped"), (N_TRAIN - 1, "kept by hand")):
        at = found[network.path[row]]
        assert DECISIONS[points.decision[at]] == decision
        assert points.label[at] == network.labels[row]
    assert points.truth[found[network.path[3]]] == 0
    assert points.truth[found[network.path[4]]] == network.labels[4]


def test_a_test_image_has_its_sample_id_and_no_decision(inputs: ReportInputs) -> None:
    points = _pictures(inputs)[1].points
    assert sorted(points.name) == sorted(f"test image {row}" for row in range(N_TEST))
    label_of = dict(zip(points.name, points.label, strict=True))
    assert label_of["test image 7"] == inputs.data.test.labels[7]
    assert points.decision == points.truth == []


def test_points_lie_where_the_picture_has_them(inputs: ReportInputs) -> None:
    """One image far from the others is the only color in its part of the picture."""
    (network,) = inputs.networks
    xy = np.full((N_TRAIN, 2), [0.0, 0.0], dtype=np.float32)
    xy[5] = [10.0, 4.0]
    picture, _ = _pictures(inputs, replace(network, xy=xy))
    at = picture.points.name.index(network.path[5])
    place = np.array([picture.points.x[at], picture.points.y[at]]) / GRID
    _, _, content = picture.source.partition(",")
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))).convert("RGBA"))
    rows, columns = np.nonzero(pixels[..., 3])
    right = columns > pixels.shape[1] / 2
    middle = np.array([columns[right].mean() / pixels.shape[1], rows[right].mean() / pixels.shape[0]])
    np.testing.assert_allclose(place, middle, atol=0.005)
    # The ordinate of a picture points down.
    assert place[1] < 0.5
    assert pixels.shape[0] == pixels.shape[1]


def test_of_many_images_the_most_suspect_are_found_and_a_sample(inputs: ReportInputs) -> None:
    (network,) = inputs.networks
    n = 2 * MAX_POINTS
    rng = np.random.default_rng(0)
    many = replace(
        network,
        xy=rng.normal(size=(n, 2)).astype(np.float32),
        labels=np.arange(n) % 4,
        score=np.arange(n) / n,
        keep=np.ones(n, dtype=bool),
        is_noise=np.zeros(n, dtype=bool),
        path=[str(row) for row in range(n)],
    )
    points = _pictures(replace(inputs, true_labels=None), many)[0].points
    found = {int(name) for name in points.name}
    assert len(found) == len(points.x) == len(points.label) == MAX_POINTS
    assert set(range(n - MAX_POINTS // 2, n)) <= found
    others = sorted(found - set(range(n - MAX_POINTS // 2, n)))
    # A sample of all others, and not their beginning or their end.
    assert others[0] < n / 20
    assert 0.45 < np.mean(others) / (n - MAX_POINTS // 2) < 0.55
