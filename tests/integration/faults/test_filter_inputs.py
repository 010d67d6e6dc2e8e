"""Bad input to `reduce` and `filter`: exit code 2, one line, and nothing written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.artifacts.files import write_array
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.paths import DataPaths
from pipeline.stages.filter import filter_images
from pipeline.stages.harness import run_stage
from pipeline.stages.reduce import reduce
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import (
    NETWORK,
    class_blobs,
    run_process,
    stage_arguments,
    write_embedding,
    write_features,
    write_manifest,
    write_params,
    write_predictions,
)

_N = 60


def _project(folder: Path) -> DataPaths:
    """All that both stages need, sound."""
    data = DataPaths(root=folder / "data")
    features, labels = class_blobs(np.random.default_rng(0), n_classes=3, per_class=_N // 3, dimensions=8)
    write_manifest(data, "train", labels)
    write_manifest(data, "test", labels[:12])
    write_features(data, features, features[:12])
    write_predictions(data, labels)
    write_embedding(data, features[:, :2])
    data.overrides.write_text("path,sha256,decision,note,timestamp\n")
    _params(folder)
    return data


def _params(folder: Path, **keys: Any) -> None:
    tsne = {"perplexity": 5.0, "early_exaggeration_iter": 10, "n_iter": 10, "n_jobs": 1}
    sections: dict[str, dict[str, Any]] = {
        "reduce": {"pca": {"n_components": 4}, "tsne": tsne, "n_neighbors": 5},
        "filter": {"scorer": {"name": "dbscan", "min_samples": 3}},
    }
    for key, value in keys.items():
        section, _, rest = key.partition("__")
        outer, _, inner = rest.partition("__")
        sections[section][outer] = {**sections[section][outer], inner: value} if inner else value
    write_params(folder, **sections)


def _nan_features(data: DataPaths) -> None:
    features = np.load(data.features(NETWORK))
    features[7, 2] = np.nan
    write_features(data, features, features[:12])


def _infinite_test_features(data: DataPaths) -> None:
    features = np.load(data.features(NETWORK))
    write_features(data, features, np.full_like(features[:12], np.inf))


def _equal_features(data: DataPaths) -> None:
    write_features(data, np.ones((_N, 8), dtype=np.float32), np.ones((12, 8), dtype=np.float32))


def _short_features(data: DataPaths) -> None:
    features = np.load(data.features(NETWORK))
    write_features(data, features[:-1], features[:12])


def _truncated_features(data: DataPaths) -> None:
    path = data.features(NETWORK)
    path.write_bytes(path.read_bytes()[:200])


def _three_test_images(data: DataPaths) -> None:
    write_manifest(data, "test", np.arange(3))
    write_features(data, np.load(data.features(NETWORK)), np.load(data.features(NETWORK, "test"))[:3])


_REDUCE: list[tuple[str, Callable[[DataPaths], None] | dict[str, Any], str]] = [
    ("NaN", _nan_features, "extract/resnet18.npy: row 7 "),
    ("infinity", _infinite_test_features, "extract/resnet18.test.npy: row 0 "),
    ("equal", _equal_features, "extract/resnet18.npy: "),
    ("short", _short_features, "extract/resnet18.npy: has 59 rows"),
    ("truncated", _truncated_features, "extract/resnet18.npy: "),
    ("few test images", _three_test_images, "extract/resnet18.test.npy: 3 test images "),
    (
        "perplexity",
        {"reduce__tsne__perplexity": 20.0},
        "reduce.tsne.perplexity: 20 ",
    ),
    ("components", {"reduce__pca__n_components": 9}, "reduce.pca.n_components: 9 "),
    ("metric", {"reduce__tsne__metric": "nonsense"}, "reduce.tsne.metric: nonsense"),
]


@pytest.mark.parametrize(("change", "start"), [row[1:] for row in _REDUCE], ids=[row[0] for row in _REDUCE])
def test_reduce(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[DataPaths], None] | dict[str, Any],
    start: str,
) -> None:
    data = _project(tmp_path)
    for path in (data.embedding(NETWORK), data.components(NETWORK), data.embeddings(NETWORK)):
        path.unlink()
    _change(tmp_path, data, change)
    _fails("reduce", reduce, tmp_path, capsys, start)
    # Later steps map the components from their file, so it is there when the map fails.
    assert set((data.root / "reduce").iterdir()) <= {data.components(NETWORK)}


def _nan_map(data: DataPaths) -> None:
    coordinates = np.zeros((_N, 2), dtype=np.float32)
    coordinates[4, 1] = np.nan
    write_embedding(data, coordinates)


def _short_map(data: DataPaths) -> None:
    write_embedding(data, np.zeros((_N - 2, 2), dtype=np.float32))


def _foreign_neighbours(data: DataPaths) -> None:
    write_embedding(data, np.zeros((_N, 2), dtype=np.float32), [[_N, 1]] * _N)


def _ragged_neighbours(data: DataPaths) -> None:
    write_embedding(data, np.zeros((_N, 2), dtype=np.float32), [[1, 2]] * (_N - 2) + [[1], [1, 2, 3]])


def _no_probabilities(data: DataPaths) -> None:
    write_array(data.probabilities(NETWORK), np.ones((_N, 3), dtype=np.float32))


def _probabilities_of_fewer_classes(data: DataPaths) -> None:
    write_array(data.probabilities(NETWORK), np.full((_N, 2), 0.5, dtype=np.float32))


def _nan_components(data: DataPaths) -> None:
    components = np.zeros((_N, 4), dtype=np.float32)
    components[9, 0] = np.inf
    write_array(data.components(NETWORK), components)


def _one_number_for_neighbours(data: DataPaths) -> None:
    table = read_parquet(data.embedding(NETWORK))
    at = table.column_names.index("neighbours")
    write_parquet(data.embedding(NETWORK), table.set_column(at, "neighbours", pa.array(range(_N))))


def _absent_confidence(data: DataPaths) -> None:
    table = read_parquet(data.predictions(NETWORK))
    at = table.column_names.index("confidence")
    absent = pa.array([0.5, None] * (_N // 2), pa.float32())
    write_parquet(data.predictions(NETWORK), table.set_column(at, "confidence", absent))


def _predictions_of_another_run(data: DataPaths) -> None:
    write_predictions(data, np.zeros(_N + 1, dtype=np.int64))


def _shuffled_predictions(data: DataPaths) -> None:
    table = read_parquet(data.predictions(NETWORK))
    write_parquet(data.predictions(NETWORK), table.take(pa.array(range(_N - 1, -1, -1))))


def _no_map(data: DataPaths) -> None:
    data.embedding(NETWORK).unlink()


def _torn_map(data: DataPaths) -> None:
    data.embedding(NETWORK).write_bytes(data.embedding(NETWORK).read_bytes()[:-20])


def _small_class(data: DataPaths) -> None:
    labels = np.concatenate([np.zeros(_N - 2, dtype=np.int64), [1, 1]])
    write_manifest(data, "train", labels, names=["cat", "yak"])
    write_predictions(data, labels)


def _unknown_override(data: DataPaths) -> None:
    with data.overrides.open("a") as file:
        file.write("nowhere.png,aa,keep,,\n")


def _stale_override(data: DataPaths) -> None:
    path = read_parquet(data.manifest("train"))["path"][3].as_py()
    with data.overrides.open("a") as file:
        file.write(f"{path},aa,keep,,\n")


_FILTER: list[tuple[str, Callable[[DataPaths], None] | dict[str, Any], str]] = [
    ("NaN", _nan_map, "reduce/resnet18.maps.npy: row 4 "),
    ("short map", _short_map, "reduce/resnet18.parquet: its 58 rows "),
    ("neighbours out of range", _foreign_neighbours, "reduce/resnet18.parquet: "),
    ("ragged neighbours", _ragged_neighbours, "reduce/resnet18.parquet: "),
    ("no probabilities", _no_probabilities, "extract/resnet18.probabilities.npy: "),
    (
        "fewer classes",
        _probabilities_of_fewer_classes,
        "extract/resnet18.probabilities.npy: ",
    ),
    ("components", _nan_components, "reduce/resnet18.pca.npy: row 9 "),
    ("number for a list", _one_number_for_neighbours, "reduce/resnet18.parquet: column neighbours "),
    ("nulls", _absent_confidence, "extract/resnet18.parquet: column confidence "),
    ("predictions", _predictions_of_another_run, "extract/resnet18.parquet: its 61 rows "),
    ("shuffled", _shuffled_predictions, "extract/resnet18.parquet: its 60 rows "),
    ("missing", _no_map, "reduce/resnet18.parquet: "),
    ("torn", _torn_map, "reduce/resnet18.parquet: "),
    ("small class", _small_class, "filter.scorer.min_samples: 3"),
    ("unknown override", _unknown_override, "overrides.csv: line 2: 'nowhere.png' "),
    ("stale override", _stale_override, "overrides.csv: line 2: "),
    (
        "empty class",
        {"filter__drop_fraction": None, "filter__eps": 1e-9},
        "filter.eps: 1e-09 ",
    ),
    ("share empties a class", {"filter__drop_fraction": 0.999}, "filter.drop_fraction: 0.999 "),
]


@pytest.mark.parametrize(("change", "start"), [row[1:] for row in _FILTER], ids=[row[0] for row in _FILTER])
def test_filter(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[DataPaths], None] | dict[str, Any],
    start: str,
) -> None:
    data = _project(tmp_path)
    _change(tmp_path, data, change)
    _fails("filter", filter_images, tmp_path, capsys, start)
    assert list(data.points(NETWORK).parent.glob("*")) == []


def _change(folder: Path, data: DataPaths, change: Callable[[DataPaths], None] | dict[str, Any]) -> None:
    if isinstance(change, dict):
        _params(folder, **change)
    else:
        change(data)


def _fails(
    stage: str,
    body: Callable[..., None],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    start: str,
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_stage(stage, body, item="network", argv=stage_arguments(folder))
    assert stopped.value.code == 2
    said = str(printed_error(capsys.readouterr().err))
    assert said.removeprefix(f"{folder / 'data'}/").startswith(start)


@pytest.mark.parametrize(
    ("stage", "change", "key"),
    [
        ("reduce", {"reduce__tsne__perplexity": 20.0}, "reduce.tsne.perplexity"),
        pytest.param(
            "filter",
            {"filter__scorer__min_samples": 21},
            "filter.scorer.min_samples",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_real_process_ends_with_one_line_and_code_2(
    tmp_path: Path, stage: str, change: dict[str, Any], key: str
) -> None:
    data = _project(tmp_path)
    done = run_process(stage, tmp_path)
    assert done.returncode == 0, done.stderr
    _change(tmp_path, data, change)
    done = run_process(stage, tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert printed_error(done.stderr).key == key
