"""Two networks that share the minutes: what is dropped between rounds, and the means of two networks."""

from pathlib import Path

import numpy as np

from benchmarks.label_noise.evidence import read_predictions
from benchmarks.label_noise.two_networks import kept_images, write_averages
from pipeline.artifacts.files import read_json, write_array, write_json
from pipeline.artifacts.metrics import read_dynamics
from pipeline.artifacts.tables import read_parquet
from pipeline.paths import DataPaths
from tests.fixtures.label_noise import write_case
from tests.fixtures.projects import NETWORK, write_features


def test_the_most_suspect_images_are_dropped() -> None:
    suspicion = np.array([0.1, np.inf, 0.5, 0.4, 0.5, 0.0, 0.2, 0.3, 0.5, 0.1])
    assert np.flatnonzero(~kept_images(suspicion, 0.3)).tolist() == [1, 2, 4]
    assert kept_images(suspicion, 0.01).all()


def test_averages_are_means_of_two_networks_but_for_features(tmp_path: Path) -> None:
    folders = [DataPaths(root=tmp_path / name / "data") for name in ("first", "second")]
    rng = np.random.default_rng(0)
    probabilities, confidence = [], []
    for data in folders:
        write_case(data.root.parent)
        n = read_parquet(data.manifest("train"), ["label"]).num_rows
        probabilities.append(rng.dirichlet(np.ones(4), size=n).astype(np.float32))
        confidence.append(rng.uniform(size=n).astype(np.float32))
        write_features(data, rng.normal(size=(n, 8)).astype(np.float32), np.zeros((4, 8), dtype=np.float32))
        write_array(data.probabilities(NETWORK), probabilities[-1])
    confidence[0][3] = np.nan
    confidence[0][5] = confidence[1][5] = np.nan
    for data, values, top1 in zip(folders, confidence, (0.5, 0.75), strict=True):
        write_array(data.training_confidence(NETWORK), values)
        write_json(data.finetune_metrics(NETWORK), {"top1": top1})
        data.predictions(NETWORK, "test").write_bytes(b"")
    final = DataPaths(root=tmp_path / "final/data")
    write_case(tmp_path / "final")
    write_averages(final, NETWORK, [(data, NETWORK) for data in folders])
    inputs = read_predictions(final, NETWORK).scorer_inputs
    assert inputs.probabilities is not None
    assert inputs.training_confidence is not None
    np.testing.assert_allclose(inputs.probabilities, (probabilities[0] + probabilities[1]) / 2, atol=1e-7)
    expected = (confidence[0] + confidence[1]) / 2
    expected[3] = confidence[1][3]
    np.testing.assert_allclose(inputs.training_confidence, expected, rtol=1e-6)
    assert np.isnan(inputs.training_confidence).nonzero()[0].tolist() == [5]
    first = read_dynamics(folders[0].training_dynamics(NETWORK), n)
    assert first is not None
    assert inputs.training_margin is not None
    np.testing.assert_allclose(inputs.training_margin, first[0], rtol=1e-6, err_msg="both have equal margins")
    np.testing.assert_array_equal(np.load(final.features(NETWORK)), np.load(folders[0].features(NETWORK)))
    assert read_json(final.finetune_metrics(NETWORK)) == {"top1": 0.625}
    predicted = read_parquet(final.predictions(NETWORK))["predicted"].to_numpy()
    np.testing.assert_array_equal(predicted, inputs.probabilities.argmax(axis=1))
