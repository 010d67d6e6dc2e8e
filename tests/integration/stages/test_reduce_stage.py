"""`reduce` runs end to end on made-up features."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.artifacts.files import read_json, write_array
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.config.reduce import TsneConfig
from pipeline.paths import DataPaths
from pipeline.reduction.landmarks import landmark_rows
from pipeline.reduction.neighbors import exact_neighbors
from pipeline.reduction.pca import fit_pca
from pipeline.reduction.tsne import fit_tsne
from pipeline.stages import reduce as module
from pipeline.stages.harness import run_stage
from pipeline.stages.reduce import reduce
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import (
    NETWORK,
    class_blobs,
    name_networks,
    stage_arguments,
    write_features,
    write_manifest,
    write_params,
    write_predictions,
)

_TSNE = {"perplexity": 12.0, "early_exaggeration_iter": 50, "n_iter": 80, "n_jobs": 1}


def _project(
    folder: Path,
    *,
    n_test: int = 20,
    pca: int | None = 10,
    keys: Mapping[str, Any] | None = None,
    dask: Mapping[str, Any] | None = None,
    **tsne: float | str,
) -> DataPaths:
    data = DataPaths(root=folder / "data")
    features, labels = class_blobs(np.random.default_rng(0), n_classes=4, per_class=50, dimensions=24, spread=2.0)
    n_train = len(labels) - n_test
    write_manifest(data, "train", labels[:n_train])
    write_manifest(data, "test", labels[n_train:])
    write_features(data, features[:n_train], features[n_train:])
    write_predictions(data, labels[:n_train])
    reduce = {"pca": {"n_components": pca}, "tsne": {**_TSNE, **tsne}, "n_neighbors": 6, **(keys or {})}
    write_params(folder, reduce=reduce, dask=dask or {})
    return data


def _run(folder: Path) -> None:
    run_stage("reduce", reduce, item="network", argv=stage_arguments(folder))


def _files(data: DataPaths) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((data.root / "reduce").iterdir())}


def test_all_artifacts(tmp_path: Path) -> None:
    data = _project(tmp_path)
    _run(tmp_path)
    assert list(_files(data)) == sorted(
        f"{NETWORK}.{end}" for end in ("json", "maps.npy", "parquet", "pca.npy", "provenance.json", "test.parquet")
    )
    components = np.load(data.components(NETWORK))
    assert components.dtype == np.float32
    assert components.shape == (180, 10)
    table = read_parquet(data.embedding(NETWORK))
    assert {field.name: str(field.type) for field in table.schema} == {
        "sample_id": "int64",
        "x": "float",
        "y": "float",
        "neighbours": "list<element: int32>",
        "distances": "list<element: float>",
    }
    # 180 images: the search is exact.
    neighbors = np.array(table["neighbours"].to_pylist())
    np.testing.assert_array_equal(neighbors, exact_neighbors(components, np.arange(180), 6))
    between = np.linalg.norm(components[neighbors] - components[:, None], axis=2)
    np.testing.assert_allclose(np.array(table["distances"].to_pylist()), between, rtol=1e-5)
    maps = np.load(data.embeddings(NETWORK))
    assert maps.dtype == np.float32
    np.testing.assert_array_equal(maps, [np.column_stack([table["x"], table["y"]])])
    test = read_parquet(data.embedding(NETWORK, "test"))
    assert test.column_names == ["sample_id", "x", "y"]
    assert len(test) == 20
    metrics = read_json(data.reduce_metrics(NETWORK))
    assert 0.5 < metrics["pca"]["explained_variance_ratio"] <= 1
    assert len(metrics["pca"]["explained_variance_ratio_per_component"]) == 10
    assert 0.2 < metrics["neighbour_preservation"] <= 1
    assert metrics["neighbour_search_recall"] == 1
    assert metrics["neighbour_search"] == {"method": "exact"}
    assert metrics["maps"][0]["landmarks"] is None
    assert metrics["knn_label_accuracy"]["map"] > 0.9
    assert metrics["kl_divergence"] > 0
    assert metrics["tsne"]["effective"]["perplexity"] == 12


def test_with_folds_the_network_of_the_image_decides_its_neighbors(tmp_path: Path) -> None:
    data = _project(tmp_path)
    features, folds = np.load(data.features(NETWORK)), np.arange(180, dtype=np.int32) // 4 % 2
    rng = np.random.default_rng(1)
    by_network = np.stack([features + rng.normal(size=24), features * rng.uniform(0.5, 2, size=24)]).astype(np.float32)
    write_features(data, by_network[folds, np.arange(180)], np.load(data.features(NETWORK, "test")))
    write_array(data.features_by_network(NETWORK), by_network)
    write_parquet(data.predictions(NETWORK), pa.table({"fold": folds}))
    _run(tmp_path)
    axes = fit_pca(np.load(data.features(NETWORK)), 10)
    neighbors = np.array(read_parquet(data.embedding(NETWORK))["neighbours"].to_pylist())
    for fold in range(2):
        rows = np.flatnonzero(folds == fold)
        np.testing.assert_array_equal(neighbors[rows], exact_neighbors(axes.transform(by_network[fold]), rows, 6))
    metrics = read_json(data.reduce_metrics(NETWORK))
    same_fold = metrics["same_fold_share"]
    assert same_fold["neighbours"] == pytest.approx((folds[neighbors] == folds[:, None]).mean())
    assert same_fold["components"] > 0.6 > same_fold["neighbours"] > 0.4
    assert same_fold["expected"] == pytest.approx((92 * 91 + 88 * 87) / (180 * 179))
    assert metrics["neighbour_search_recall"] == 1
    assert metrics["neighbour_search"]["networks"] == 2


def test_features_of_another_number_of_networks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = _project(tmp_path)
    features = np.load(data.features(NETWORK))
    write_array(data.features_by_network(NETWORK), np.stack([features] * 3))
    write_parquet(data.predictions(NETWORK), pa.table({"fold": np.arange(180, dtype=np.int32) % 2}))
    with pytest.raises(SystemExit) as exited:
        _run(tmp_path)
    assert exited.value.code == 2
    assert printed_error(capsys.readouterr().err).key == str(data.features_by_network(NETWORK))


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    data = _project(tmp_path)
    _run(tmp_path)
    first = _files(data)
    _run(tmp_path)
    assert _files(data) == first


@pytest.mark.slow
def test_extra_embeddings_are_those_of_their_settings(tmp_path: Path) -> None:
    runs = []
    for name, dask in (("here", {}), ("workers", {"scheduler": "local", "workers": 2})):
        (tmp_path / name).mkdir()
        more = {"extra_embeddings": [{"random_state": 1, "initialization": "random"}, {"perplexity": 30.0}]}
        data = _project(tmp_path / name, keys=more, dask=dask)
        _run(tmp_path / name)
        runs.append({name: content for name, content in _files(data).items() if "provenance" not in name})
    assert runs[0] == runs[1]
    maps = np.load(data.embeddings(NETWORK))
    components = np.load(data.components(NETWORK))
    changes: list[dict[str, Any]] = [{}, {"random_state": 1, "initialization": "random"}, {"perplexity": 30.0}]
    for made, keys in zip(maps, changes, strict=True):
        settings = TsneConfig.model_validate({**_TSNE, **keys}).model_dump()
        expected = fit_tsne(components, settings, report=lambda *_: None)
        np.testing.assert_array_equal(made, expected.coordinates)
    listed = read_json(data.reduce_metrics(NETWORK))["maps"]
    assert [entry["tsne"]["requested"]["perplexity"] for entry in listed] == [12, 12, 30]
    assert len({entry["kl_divergence"] for entry in listed}) == 3


def test_landmarks_are_embedded_as_if_alone_and_recorded(tmp_path: Path) -> None:
    data = _project(tmp_path, keys={"landmarks": 100})
    _run(tmp_path)
    metrics = read_json(data.reduce_metrics(NETWORK))
    assert metrics["maps"][0]["landmarks"] == {"count": 100, "seed": 0}
    assert metrics["maps"][0]["kl_divergence"] == metrics["kl_divergence"]
    labels = read_parquet(data.manifest("train"), ["label"])["label"].to_numpy()
    rows = landmark_rows(labels, 100, seed=0)
    settings = TsneConfig.model_validate(_TSNE).model_dump()
    alone = fit_tsne(np.load(data.components(NETWORK))[rows], settings, report=lambda *_: None)
    np.testing.assert_array_equal(np.load(data.embeddings(NETWORK))[0][rows], alone.coordinates)
    assert metrics["knn_label_accuracy"]["map"] > 0.9
    assert ": 80 images" in (tmp_path / "work" / "logs" / f"reduce@{NETWORK}.log").read_text()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"landmarks": 180}, r"reduce\.landmarks: 180 must be .* fewer than the 180 training images"),
        (
            {"landmarks": 30},
            r"reduce\.tsne\.perplexity: 12 is too large .* 30 images; give at most 9\.66",
        ),
        ({"extra_embeddings": [{"perplexity": 80.0}]}, r"reduce\.extra_embeddings\[0\]\.perplexity: 80 .* 180 images"),
        (
            {"landmarks": 90, "extra_embeddings": [{"metric": "cosine"}]},
            r"reduce\.extra_embeddings\[0\]\.metric: cosine, .* none",
        ),
        (
            {"extra_embeddings": [{"max_step_norm": None, "learning_rate": 1e300}]},
            r"reduce\.extra_embeddings\[0\]: .* diverge",
        ),
        ({"n_neighbors": 180}, r"reduce\.n_neighbors: 180 .* at most 179"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_settings_that_do_not_fit_the_images_are_one_line(
    tmp_path: Path, keys: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _project(tmp_path, keys=keys)
    with pytest.raises(SystemExit) as ended:
        _run(tmp_path)
    assert ended.value.code == 2
    assert re.search(message, capsys.readouterr().err)


def test_out_of_memory_names_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def embed(*_: object, **__: object) -> None:
        np.empty(2**50, dtype=np.uint8)

    _project(tmp_path)
    monkeypatch.setattr(module, "embed", embed)
    with pytest.raises(SystemExit) as ended:
        _run(tmp_path)
    assert ended.value.code == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key == "reduce.landmarks"
    assert re.findall(r"\d+", str(error)) == ["180", "24"], "images and features"


def test_a_class_of_one_image_is_embedded(tmp_path: Path) -> None:
    data = _project(tmp_path)
    labels = read_parquet(data.manifest("train"), ["label"])["label"].to_numpy().copy()
    labels[7] = 9
    write_manifest(data, "train", labels)
    _run(tmp_path)
    assert np.isfinite(np.load(data.embeddings(NETWORK))).all()


def test_a_small_test_split_lowers_its_perplexity_and_logs_it(tmp_path: Path) -> None:
    data = _project(tmp_path, n_test=7)
    _run(tmp_path)
    metrics = read_json(data.reduce_metrics(NETWORK))
    assert metrics["tsne"]["requested"]["perplexity"] == metrics["tsne"]["effective"]["perplexity"] == 12
    assert metrics["test"]["tsne"]["effective"]["perplexity"] == 2
    assert len(read_parquet(data.embedding(NETWORK, "test"))) == 7


def test_the_test_images_do_not_move_the_training_images(tmp_path: Path) -> None:
    for name, n_test in (("a", 20), ("b", 20)):
        (tmp_path / name).mkdir()
        data = _project(tmp_path / name, n_test=n_test)
        if name == "b":
            write_features(data, np.load(data.features(NETWORK)), np.load(data.features(NETWORK, "test"))[::-1] * 2)
        _run(tmp_path / name)
    first, second = (DataPaths(root=tmp_path / name / "data") for name in "ab")
    assert first.embedding(NETWORK).read_bytes() == second.embedding(NETWORK).read_bytes()
    assert first.embedding(NETWORK, "test").read_bytes() != second.embedding(NETWORK, "test").read_bytes()


def test_the_test_images_are_projected_as_the_training_images(tmp_path: Path) -> None:
    data = _project(tmp_path)
    _run(tmp_path)
    axes = fit_pca(np.load(data.features(NETWORK)), 10)
    settings = TsneConfig.model_validate({**_TSNE, "perplexity": 19 / 3}).model_dump()
    components = axes.transform(np.load(data.features(NETWORK, "test")))
    expected = fit_tsne(components, settings, report=lambda *_: None)
    test = read_parquet(data.embedding(NETWORK, "test"))
    np.testing.assert_array_equal(np.column_stack([test["x"], test["y"]]), expected.coordinates)


def test_without_pca_the_features_are_the_components(tmp_path: Path) -> None:
    data = _project(tmp_path, pca=None)
    _run(tmp_path)
    np.testing.assert_array_equal(np.load(data.components(NETWORK)), np.load(data.features(NETWORK)))
    assert read_json(data.reduce_metrics(NETWORK))["pca"] is None


def test_progress_reaches_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _project(tmp_path)
    _run(tmp_path)
    log = (tmp_path / "work" / "logs" / f"reduce@{NETWORK}.log").read_text()
    assert re.search(r"t-SNE .*\b130\b", log)
    assert capsys.readouterr().err


def test_a_replicate_has_the_embedding_of_the_next_seed(tmp_path: Path) -> None:
    data = _project(tmp_path, initialization="random", random_state=4)
    _run(tmp_path)
    expected = data.embedding(NETWORK).read_bytes()
    _project(tmp_path, initialization="random", random_state=1)
    name_networks(tmp_path / "params.yaml", [f"{NETWORK}-r3"])
    for split in ("train", "test"):
        data.features(NETWORK, split).rename(data.features(f"{NETWORK}-r3", split))
    for path in (data.features_by_network, data.predictions):
        path(NETWORK).rename(path(f"{NETWORK}-r3"))
    arguments = [f"{NETWORK}-r3" if argument == NETWORK else argument for argument in stage_arguments(tmp_path)]
    run_stage("reduce", reduce, item="network", argv=arguments)
    assert data.embedding(f"{NETWORK}-r3").read_bytes() == expected
    assert read_json(data.reduce_metrics(f"{NETWORK}-r3"))["tsne"]["requested"]["random_state"] == 4
