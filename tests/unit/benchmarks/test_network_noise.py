"""Wrong labels by several networks, none of which is the audited one."""

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.network_noise import noise_by_networks, read_probabilities, write_noise
from pipeline.artifacts.files import write_array
from pipeline.artifacts.tables import write_parquet
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from tests.fixtures.projects import write_manifest

_N = 3000


def _probabilities() -> tuple[np.ndarray, np.ndarray]:
    """The first network takes class 0 for 1, the second for 2; both are unsure of every other image of class 0 only."""
    truth = np.zeros(_N, dtype=np.int64)
    probabilities = np.zeros((2, _N, 3), dtype=np.float32)
    probabilities[:, :, 0] = 1
    probabilities[:, ::2, 0] = 0.5
    probabilities[0, ::2, 1] = probabilities[1, ::2, 2] = 0.5
    return truth, probabilities


def test_wrong_labels_are_confusions_of_all_networks_by_number() -> None:
    truth, probabilities = _probabilities()
    labels = noise_by_networks(truth, probabilities, 0.2, np.random.default_rng(0))
    wrong = labels != truth
    assert wrong.sum() == 600
    assert not wrong[1::2].any()
    # Half of them by each network: four standard errors are 49.
    assert abs((labels == 1).sum() - 300) < 50
    assert (labels[wrong] > 0).all()
    again = noise_by_networks(truth, probabilities, 0.2, np.random.default_rng(0))
    np.testing.assert_array_equal(again, labels)


def test_images_that_no_network_doubts_keep_their_label() -> None:
    with pytest.raises(InputError) as refused:
        noise_by_networks(*_probabilities(), 0.6, np.random.default_rng(0))
    assert refused.value.key == "--rate"


@pytest.mark.parametrize(
    ("networks", "folds", "key"),
    [
        (["resnet34"], 2, "--networks"),
        (["resnet34", "resnet18-r2"], 2, "--networks"),
        (["resnet34", "resnet50"], 1, "extract/resnet34.parquet"),
    ],
)
def test_own_architecture_one_network_and_in_sample_are_refused(
    networks: list[str], folds: int, key: str, tmp_path: Path
) -> None:
    data = DataPaths(root=tmp_path)
    for network in networks:
        write_parquet(data.predictions(network), pa.table({"fold": np.arange(4, dtype=np.int32) % folds}))
        write_array(data.probabilities(network), np.full((4, 2), 0.5, dtype=np.float32))
    with pytest.raises(InputError) as refused:
        read_probabilities(data, networks, "resnet18")
    assert str(refused.value.key).endswith(key)


def test_the_file_has_all_labels_and_the_confusions_count_them(tmp_path: Path) -> None:
    truth, probabilities = _probabilities()
    data = DataPaths(root=tmp_path)
    write_manifest(data, "train", truth, names=["a", "b", "c"])
    for network, values in zip(("resnet34", "resnet50"), probabilities, strict=True):
        write_parquet(data.predictions(network), pa.table({"fold": np.arange(_N, dtype=np.int32) % 2}))
        write_array(data.probabilities(network), values)
    confusions = write_noise(data, ["resnet34", "resnet50"], 0.2, seed=3, out=tmp_path / "labels.csv")
    expected = noise_by_networks(truth, probabilities, 0.2, np.random.default_rng(3))
    with (tmp_path / "labels.csv").open(newline="") as file:
        written = [row["label"] for row in csv.DictReader(file)]
    assert written == ["abc"[label] for label in expected]
    assert confusions[0].tolist() == np.bincount(expected, minlength=3).tolist()
    assert confusions.sum() == _N
