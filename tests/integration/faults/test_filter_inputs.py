"""Bad input to `reduce` and `filter`: exit code 2, one line, and nothing written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

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
from tests.fixtures.records import record
from tests.fixtures.slow import quick_first

_N = 60
_Change = Callable[[DataPaths], None] | dict[str, Any]
"""What breaks a valid project: a function of its files, or new values of parameters, named section__key__inner key."""


def _project(folder: Path) -> DataPaths:
    """Valid inputs of both stages."""
    data = DataPaths(root=folder / "data")
    features, labels = class_blobs(np.random.default_rng(0), n_classes=3, per_class=_N // 3, dimensions=8)
    write_manifest(data, "train", labels)
    write_manifest(data, "test", labels[:12])
    write_features(data, features, features[:12])
    write_predictions(data, labels)
    write_embedding(data, features[:, :2])
    data.overrides.write_text("path,sha256,decision,label,note,timestamp\n")
    _params(folder)
    return data


def _params(folder: Path, **keys: Any) -> None:
    """Write params.yaml with these keys, named as in `_Change`."""
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


def _set_features(data: DataPaths, **rows: Any) -> None:
    """Write new `train` or `test` features; a function gets the old ones."""
    features = {split: np.load(data.features(NETWORK, split)) for split in ("train", "test")}
    for split, change in rows.items():
        features[split] = change(features[split])
    write_features(data, **features)


def _set_column(path: Path, name: str, values: Any) -> None:
    """Replace a column of a Parquet file."""
    table = read_parquet(path)
    write_parquet(path, table.set_column(table.column_names.index(name), name, values))


def _truncate(path: Path, n_bytes: int) -> None:
    """Keep the first bytes of a file; a negative number cuts off the last ones."""
    path.write_bytes(path.read_bytes()[:n_bytes])


def _with_value(array: NDArray[np.float32], row: int, column: int, value: float) -> NDArray[np.float32]:
    array[row, column] = value
    return array


def _equal_features(data: DataPaths) -> None:
    _set_features(data, train=np.ones_like, test=np.ones_like)


def _three_test_images(data: DataPaths) -> None:
    write_manifest(data, "test", np.arange(3))
    _set_features(data, test=lambda features: features[:3])


def _embed(data: DataPaths, neighbors: list[list[int]] | None = None, *, n: int = _N) -> None:
    """Write an embedding in which all images have the same coordinates."""
    write_embedding(data, np.zeros((n, 2), dtype=np.float32), neighbors)


def _nan_embedding(data: DataPaths) -> None:
    write_embedding(data, _with_value(np.zeros((_N, 2), dtype=np.float32), 4, 1, np.nan))


def _shuffled_predictions(data: DataPaths) -> None:
    table = read_parquet(data.predictions(NETWORK))
    write_parquet(data.predictions(NETWORK), table.take(pa.array(range(_N - 1, -1, -1))))


def _small_class(data: DataPaths) -> None:
    labels = np.concatenate([np.zeros(_N - 2, dtype=np.int64), [1, 1]])
    write_manifest(data, "train", labels, names=["cat", "yak"])
    write_predictions(data, labels)


def _override(data: DataPaths, path: str) -> None:
    """Append a decision on an image of another content."""
    with data.overrides.open("a") as file:
        file.write(f"{path},aa,keep,,,\n")


def _stale_override(data: DataPaths) -> None:
    _override(data, read_parquet(data.manifest("train"))["path"][3].as_py())


_CASES: dict[tuple[str, str], tuple[_Change, str, str]] = {
    # (stage, case): what breaks the inputs, the key of the error, what its text begins with after the key
    ("reduce", "NaN"): (
        lambda data: _set_features(data, train=lambda features: _with_value(features, 7, 2, np.nan)),
        "extract/resnet18.npy",
        "row 7 ",
    ),
    ("reduce", "perplexity"): ({"reduce__tsne__perplexity": 20.0}, "reduce.tsne.perplexity", "20 "),
    ("filter", "NaN"): (_nan_embedding, "reduce/resnet18.maps.npy", "row 4 "),
    ("filter", "torn"): (lambda data: _truncate(data.embedding(NETWORK), -20), "reduce/resnet18.parquet", ""),
    ("filter", "small class"): (_small_class, "filter.scorer.min_samples", "3"),
    ("filter", "stale override"): (_stale_override, "overrides.csv", "line 2: "),
    ("reduce", "infinity"): (
        lambda data: _set_features(data, test=lambda features: np.full_like(features, np.inf)),
        "extract/resnet18.test.npy",
        "row 0 ",
    ),
    ("reduce", "equal"): (_equal_features, "extract/resnet18.npy", ""),
    ("reduce", "short"): (
        lambda data: _set_features(data, train=lambda features: features[:-1]),
        "extract/resnet18.npy",
        "has 59 rows",
    ),
    ("reduce", "truncated"): (lambda data: _truncate(data.features(NETWORK), 200), "extract/resnet18.npy", ""),
    ("reduce", "few test images"): (_three_test_images, "extract/resnet18.test.npy", "3 test images "),
    ("reduce", "components"): ({"reduce__pca__n_components": 9}, "reduce.pca.n_components", "9 "),
    ("reduce", "metric"): ({"reduce__tsne__metric": "nonsense"}, "reduce.tsne.metric", "nonsense"),
    ("filter", "short embedding"): (lambda data: _embed(data, n=_N - 2), "reduce/resnet18.parquet", "its 58 rows "),
    ("filter", "neighbors out of range"): (
        lambda data: _embed(data, [[_N, 1]] * _N),
        "reduce/resnet18.parquet",
        "",
    ),
    ("filter", "ragged neighbors"): (
        lambda data: _embed(data, [[1, 2]] * (_N - 2) + [[1], [1, 2, 3]]),
        "reduce/resnet18.parquet",
        "",
    ),
    ("filter", "no probabilities"): (
        lambda data: write_array(data.probabilities(NETWORK), np.ones((_N, 3), dtype=np.float32)),
        "extract/resnet18.probabilities.npy",
        "",
    ),
    ("filter", "fewer classes"): (
        lambda data: write_array(data.probabilities(NETWORK), np.full((_N, 2), 0.5, dtype=np.float32)),
        "extract/resnet18.probabilities.npy",
        "",
    ),
    ("filter", "components"): (
        lambda data: write_array(
            data.components(NETWORK), _with_value(np.zeros((_N, 4), dtype=np.float32), 9, 0, np.inf)
        ),
        "reduce/resnet18.pca.npy",
        "row 9 ",
    ),
    ("filter", "number for a list"): (
        lambda data: _set_column(data.embedding(NETWORK), "neighbours", pa.array(range(_N))),
        "reduce/resnet18.parquet",
        "column neighbours ",
    ),
    ("filter", "nulls"): (
        lambda data: _set_column(
            data.predictions(NETWORK), "confidence", pa.array([0.5, None] * (_N // 2), pa.float32())
        ),
        "extract/resnet18.parquet",
        "column confidence ",
    ),
    ("filter", "predictions"): (
        lambda data: write_predictions(data, np.zeros(_N + 1, dtype=np.int64)),
        "extract/resnet18.parquet",
        "its 61 rows ",
    ),
    ("filter", "shuffled"): (_shuffled_predictions, "extract/resnet18.parquet", "its 60 rows "),
    ("filter", "missing"): (lambda data: data.embedding(NETWORK).unlink(), "reduce/resnet18.parquet", ""),
    ("filter", "unknown override"): (
        lambda data: _override(data, "nowhere.png"),
        "overrides.csv",
        "line 2: 'nowhere.png' ",
    ),
    ("filter", "empty class"): ({"filter__drop_fraction": None, "filter__eps": 1e-9}, "filter.eps", "1e-09 "),
    ("filter", "share empties a class"): ({"filter__drop_fraction": 0.999}, "filter.drop_fraction", "0.999 "),
}
_STAGES: dict[str, Callable[..., None]] = {"reduce": reduce, "filter": filter_images}


@pytest.mark.parametrize(
    ("stage", "change", "key", "detail"),
    quick_first(6, [(stage, *case) for (stage, _), case in _CASES.items()]),
    ids=[" ".join(name) for name in _CASES],
)
def test_bad_input_ends_with_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stage: str, change: _Change, key: str, detail: str
) -> None:
    data = _project(tmp_path)
    if stage == "reduce":
        for path in (data.embedding(NETWORK), data.components(NETWORK), data.embeddings(NETWORK)):
            path.unlink()
    _change(tmp_path, data, change)
    with pytest.raises(SystemExit) as stopped:
        run_stage(stage, _STAGES[stage], item="network", argv=stage_arguments(tmp_path))
    assert stopped.value.code == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key.removeprefix(f"{tmp_path / 'data'}/") == key
    assert str(error).partition(f"{key}: ")[2].startswith(detail)
    # `reduce` writes the components before it embeds them, so they are there when t-SNE fails.
    allowed = {data.components(NETWORK)} if stage == "reduce" else set()
    assert set((data.root / stage).glob("*")) <= allowed


def _change(folder: Path, data: DataPaths, change: _Change) -> None:
    if isinstance(change, dict):
        _params(folder, **change)
    else:
        change(data)


@pytest.mark.slow
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
    for writer in ("prepare", "finetune", "extract", "reduce"):
        record(data, writer, None if writer == "prepare" else NETWORK)
    done = run_process(stage, tmp_path)
    assert done.returncode == 0, done.stderr
    _change(tmp_path, data, change)
    done = run_process(stage, tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert printed_error(done.stderr).key == key
