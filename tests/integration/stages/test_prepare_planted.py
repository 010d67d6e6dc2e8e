"""`prepare.plant_label_noise` makes training labels wrong on purpose, and the manifest records it."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.artifacts.prepared import count_planted, planted_note, read_true_labels
from pipeline.artifacts.tables import read_parquet
from pipeline.datasets.label_noise import NoiseKind, plant_label_noise
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from tests.fixtures.images import run_prepare, split_tree, write_folder
from tests.fixtures.printed_errors import key_within, printed_error

_DIGITS: dict[str, Any] = {"dataset": "digits", "image_size": 8, "test_size": 0.2}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> DataPaths:
    return run_prepare(tmp_path_factory.mktemp("plain"), None, **_DIGITS)


def _noise(kind: str = "symmetric", fraction: float = 0.1, **keys: Any) -> dict[str, Any]:
    return {"fraction": fraction, "kind": kind, **keys}


@pytest.mark.parametrize("kind", ["symmetric", "pair", "instance"])
def test_the_stated_fraction_of_the_training_labels_is_wrong(
    plain: DataPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: NoiseKind
) -> None:
    data = run_prepare(tmp_path, None, **_DIGITS, plant_label_noise=_noise(kind))
    before, after = (read_parquet(of.manifest("train")) for of in (plain, data))
    n = len(before)
    assert after.column_names == [*before.column_names, "true_label"]
    assert after["true_label"].equals(before["label"])
    wrong = after["label"].to_numpy() != after["true_label"].to_numpy()
    assert wrong.sum() == round(0.1 * n) == json.loads(data.prepare_metrics.read_text())["n_planted"]
    names = json.loads(data.prepare_metrics.read_text())["class_names"]
    assert after["label_name"].to_pylist() == [names[label] for label in after["label"].to_pylist()]
    untouched = ["sample_id", "path", "sha256", "val"]
    assert after.select(untouched).equals(before.select(untouched))
    assert data.manifest("test").read_bytes() == plain.manifest("test").read_bytes()
    for split in ("train", "test"):
        assert data.images(split).read_bytes() == plain.images(split).read_bytes()
    assert planted_note(int(wrong.sum())) in capsys.readouterr().err.splitlines()[-1]
    np.testing.assert_array_equal(read_true_labels(data), before["label"].to_numpy())


def test_without_planted_labels_the_manifest_has_no_true_labels(plain: DataPaths) -> None:
    assert "true_label" not in read_parquet(plain.manifest("train")).column_names
    assert json.loads(plain.prepare_metrics.read_text())["n_planted"] is None
    assert count_planted(plain) is None
    assert read_true_labels(plain) is None


def test_class_counts_are_those_of_the_changed_labels(tmp_path: Path) -> None:
    data = run_prepare(tmp_path, None, **_DIGITS, plant_label_noise=_noise("pair", 0.3))
    names = read_parquet(data.manifest("train"))["label_name"].to_pylist()
    counts = json.loads(data.prepare_metrics.read_text())["class_counts"]["train"]
    assert counts == {name: names.count(name) for name in counts}


def test_another_seed_plants_other_labels(tmp_path: Path) -> None:
    labels = []
    for seed in (0, 1, 0):
        data = run_prepare(tmp_path, None, **_DIGITS, plant_label_noise=_noise(seed=seed))
        labels.append(read_parquet(data.manifest("train"))["label"].to_pylist())
    assert labels[0] == labels[2] != labels[1]


def _refused(capsys: pytest.CaptureFixture[str], folder: Path, images: Path | None, **config: Any) -> str:
    with pytest.raises(SystemExit) as ended:
        run_prepare(folder, images, **config)
    assert ended.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


def test_labels_of_own_images_are_changed_only_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = write_folder(tmp_path / "photos", split_tree(n_train=20))
    line = _refused(capsys, tmp_path, images, plant_label_noise=_noise())
    assert key_within(printed_error(line), tmp_path / "params.yaml") == "prepare"
    assert line.endswith("on_own_data: true")
    assert not (tmp_path / "data/prepare").exists()


def test_nothing_planted_is_written_back_to_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = write_folder(tmp_path / "photos", split_tree(n_train=20))
    before = _digest(images)
    data = run_prepare(tmp_path, images, plant_label_noise=_noise(on_own_data=True))
    assert count_planted(data) == 4
    assert _digest(images) == before
    assert f"{planted_note(4)}, " in (printed := capsys.readouterr().err)
    assert str(images) in printed


def test_the_note_on_built_in_data_names_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_prepare(tmp_path, None, **_DIGITS, plant_label_noise=_noise(on_own_data=True))
    noted = next(line for line in capsys.readouterr().err.splitlines() if planted_note(144) in line)
    assert f"{planted_note(144)};" in noted


def _digest(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"label_file": "annotator.csv"}, "prepare"),
        ({"plant_label_noise": _noise(fraction=0.0001)}, "prepare.plant_label_noise.fraction"),
        ({"plant_label_noise": _noise(fraction=1.5)}, "prepare.plant_label_noise.fraction"),
        ({"plant_label_noise": _noise(kind="random")}, "prepare.plant_label_noise.kind"),
    ],
)
def test_impossible_settings_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any], key: str
) -> None:
    line = _refused(capsys, tmp_path, None, **_DIGITS, **{"plant_label_noise": _noise(), **config})
    assert key in line.split(": ")


def test_a_class_that_is_left_without_images_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With two images of cat and of dog, some seed labels both dogs as elk and no cat as dog."""
    labels, images = np.repeat([0, 1, 2], [2, 2, 20]), np.zeros((24, 8, 8, 3), dtype=np.uint8)
    seed = next(
        seed
        for seed in range(1000)
        if 1 not in plant_label_noise(labels, "pair", 0.5, images=images, rng=np.random.default_rng(seed))
    )
    files = {**split_tree(("cat", "dog"), n_train=2), **split_tree(("elk",), n_train=20)}
    noise = _noise("pair", 0.5, seed=seed, on_own_data=True)
    line = _refused(capsys, tmp_path, write_folder(tmp_path / "photos", files), plant_label_noise=noise)
    assert ": class dog has 0 " in line


def test_a_manifest_that_does_not_fit_its_metrics_is_refused(tmp_path: Path) -> None:
    data = run_prepare(tmp_path, None, **_DIGITS, plant_label_noise=_noise())
    metrics = json.loads(data.prepare_metrics.read_text())
    data.prepare_metrics.write_text(json.dumps({**metrics, "n_planted": 3}))
    with pytest.raises(InputError) as raised:
        read_true_labels(data)
    assert raised.value.key == str(data.manifest("train"))
