"""`reduce`: principal components and one joint t-SNE map of all classes, for one network's features."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.arrays import open_array, write_array
from pipeline.artifacts.atomic import remove_leftovers
from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.config.networks import replicate_of
from pipeline.config.reduce import ReduceConfig, TsneConfig
from pipeline.errors import InputError
from pipeline.fanout import fan_out
from pipeline.reduction.checks import check_features, check_perplexity, check_settings, largest_perplexity
from pipeline.reduction.landmarks import check_landmarks, landmark_count
from pipeline.reduction.neighbours import Neighbours, nearest_others
from pipeline.reduction.pca import PrincipalAxes, fit_principal_axes
from pipeline.reduction.quality import exact_neighbours, knn_label_accuracy, neighbour_recall, quality_sample
from pipeline.reduction.tasks import Map
from pipeline.reduction.tsne import TsneMap, training_map, tsne_map
from pipeline.run_log import RunLog
from pipeline.stages.harness import StageContext, run_stage

_LEAST_TEST_IMAGES = 4  # the fewest points with a perplexity of 1


def reduce(context: StageContext) -> None:
    """Write everything in data/reduce/ for `context.item`, a network."""
    assert context.item is not None
    network, data, log = context.item, context.data, context.log
    config = _of_replicate(context.params.reduce, replicate_of(network))
    remove_leftovers(data.reduce_metrics(network).parent)
    labels = read_parquet(data.manifest("train"), ["label"])["label"].to_numpy()
    train = _features(context, "train", rows=len(labels))
    test = _features(context, "test", rows=len(read_parquet(data.manifest("test"), ["label"])))
    landmarks = _check(config, train, labels)
    if len(test) < _LEAST_TEST_IMAGES:
        raise InputError(
            f"{data.features(network, 'test')}: {len(test)} test images make no map; "
            f"give the test split at least {_LEAST_TEST_IMAGES}"
        )
    # Like t-SNE, BLAS gives other bits with other numbers of threads: one setting pins both.
    with fan_out(context.dask.scheduler, workers=context.dask.workers, threads=config.tsne.n_jobs) as run:
        axes = _axes(train, config, log, run)
        write_array(data.components(network), axes.project(train, run=run) if axes else train)
        components = open_array(data.components(network), dtype=np.float32, ndim=2, rows=len(train))
        test_components = axes.project(test) if axes else np.asarray(test)
        maps = _training_maps(components, labels, config, landmarks, log, run)
        neighbours = nearest_others(components, config.neighbors, seed=config.tsne.random_state)
        quality = _quality(components, maps[0], neighbours, labels)
        test_map = _map(test_components, _test_settings(config.tsne, len(test)), log, "t-SNE of the test images")
    log.info(
        f"map of {len(train)} images: KL divergence {maps[0].kl_divergence:.3f}, "
        f"{quality['neighbour_preservation']:.1%} of {config.neighbors} nearest neighbours preserved"
    )
    metrics = {
        "n_train": len(train),
        "n_test": len(test),
        "pca": _pca_metrics(axes),
        "kl_divergence": maps[0].kl_divergence,
        **quality,
        "neighbour_search": neighbours.search,
        "tsne": {"requested": config.tsne.model_dump(), "effective": maps[0].effective},
        "maps": _map_metrics(config, maps, landmarks),
        "test": {"kl_divergence": test_map.kl_divergence, "tsne": {"effective": test_map.effective}},
    }
    _write(context, maps, neighbours, test_map, metrics)
    context.images.append(len(train) + len(test))


def _of_replicate(config: ReduceConfig, number: int) -> ReduceConfig:
    """The section with the seed of every map moved by `number`."""
    tsne = config.tsne.model_copy(update={"random_state": config.tsne.random_state + number})
    # A map that names no seed takes that of `tsne`, which has been moved.
    more_maps = tuple(
        {key: value + number if key == "random_state" else value for key, value in changes.items()}
        for changes in config.more_maps
    )
    return config.model_copy(update={"tsne": tsne, "more_maps": more_maps})


def _check(config: ReduceConfig, features: NDArray[np.float32], labels: NDArray[np.int64]) -> int | None:
    """Refuse settings that the training images cannot meet; returns the number of landmarks, if there are to be any."""
    n = len(labels)
    check_settings(*features.shape, n_components=config.pca.n_components, neighbors=config.neighbors)
    landmarks = landmark_count(config.landmarks, n)
    for number in range(1 + len(config.more_maps)):
        settings = config.map_settings(number)
        key = f"reduce.more_maps[{number - 1}]" if number else "reduce.tsne"
        check_perplexity(landmarks or n, settings.perplexity, key=f"{key}.perplexity")
        if landmarks:
            n_classes = len(np.unique(labels))
            check_landmarks(landmarks, n=n, n_classes=n_classes, metric=settings.metric, key=f"{key}.metric")
    return landmarks


def _features(context: StageContext, split: str, rows: int) -> NDArray[np.float32]:
    path = context.data.features(str(context.item), split)
    features = open_array(path, dtype=np.float32, ndim=2, rows=rows)
    check_features(features, str(path))
    return features


def _axes(features: NDArray[np.float32], config: ReduceConfig, log: RunLog, run: Map) -> PrincipalAxes | None:
    if config.pca.n_components is None:
        return None
    axes = fit_principal_axes(features, config.pca.n_components, run=run)
    log.info(
        f"PCA: {config.pca.n_components} components of {features.shape[1]} features hold "
        f"{axes.explained_variance_ratio.sum():.1%} of the variance"
    )
    return axes


def _test_settings(tsne: TsneConfig, n: int) -> TsneConfig:
    """The settings of the test images' map, which serves the eye alone.

    Where the test split is too small for the perplexity, its map takes the largest that works
    instead of stopping a run whose results do not depend on it; the metrics record both.
    """
    return tsne.model_copy(update={"perplexity": min(tsne.perplexity, largest_perplexity(n))})


def _training_maps(
    components: NDArray[np.float32],
    labels: NDArray[np.int64],
    config: ReduceConfig,
    landmarks: int | None,
    log: RunLog,
    run: Map,
) -> list[TsneMap]:
    """The main map, made here, and then the further ones, which workers may have begun before."""
    further = [config.map_settings(number).model_dump() for number in range(1, 1 + len(config.more_maps))]
    begun = run(partial(training_map, components, labels, landmarks=landmarks), further)
    maps = [_main_map(components, labels, config.tsne, landmarks, log)]
    if further:
        with log.progress("further t-SNE maps", len(further), "maps") as bar:
            for number in range(len(further)):
                maps.append(_further_map(begun, number))
                bar.update(1, f"KL {maps[-1].kl_divergence:.3f}")
    return maps


def _further_map(begun: Iterator[TsneMap], number: int) -> TsneMap:
    try:
        return next(begun)
    except InputError as error:
        raise InputError(f"reduce.more_maps[{number}]: {error}") from None


def _main_map(
    components: NDArray[np.float32], labels: NDArray[np.int64], tsne: TsneConfig, landmarks: int | None, log: RunLog
) -> TsneMap:
    if landmarks is None:
        return _map(components, tsne, log, "t-SNE of the training images")
    with (
        log.progress("t-SNE of the landmarks", _iterations(tsne), "iterations") as bar,
        log.progress("images placed", len(labels) - landmarks, "images") as placed,
    ):
        return training_map(
            components,
            labels,
            tsne.model_dump(),
            landmarks=landmarks,
            report=lambda done, divergence: bar.update(done, f"KL {divergence:.3f}"),
            report_placed=placed.update,
        )


def _map(points: NDArray[np.float32], tsne: TsneConfig, log: RunLog, name: str) -> TsneMap:
    with log.progress(name, _iterations(tsne), "iterations") as bar:

        def report(done: int, divergence: float) -> None:
            bar.update(done, f"KL {divergence:.3f}")

        return tsne_map(points, tsne.model_dump(), report=report)


def _iterations(tsne: TsneConfig) -> int:
    return tsne.early_exaggeration_iter + tsne.n_iter


def _quality(
    components: NDArray[np.float32], mapped: TsneMap, neighbours: Neighbours, labels: NDArray[np.int64]
) -> dict[str, Any]:
    """Shares, 0 to 1, over a fixed sample of images and their exact nearest neighbours (Euclidean)."""
    rows, k = quality_sample(len(labels)), neighbours.rows.shape[1]
    before = exact_neighbours(components, rows, k)
    after = exact_neighbours(mapped.coordinates, rows, k)
    return {
        "quality_sample": len(rows),
        "quality_neighbours": k,
        "neighbour_preservation": neighbour_recall(after, before),
        "neighbour_search_recall": neighbour_recall(neighbours.rows[rows], before),
        "knn_label_accuracy": {
            "components": knn_label_accuracy(before, rows, labels),
            "map": knn_label_accuracy(after, rows, labels),
        },
    }


def _map_metrics(config: ReduceConfig, maps: Sequence[TsneMap], landmarks: int | None) -> list[dict[str, Any]]:
    """Of every map its settings, its divergence, and the landmarks: how many and the seed that draws them."""
    settings = [config.map_settings(number) for number in range(len(maps))]
    return [
        {
            "kl_divergence": mapped.kl_divergence,
            "landmarks": landmarks and {"count": landmarks, "seed": requested.random_state},
            "tsne": {"requested": requested.model_dump(), "effective": mapped.effective},
        }
        for mapped, requested in zip(maps, settings, strict=True)
    ]


def _pca_metrics(axes: PrincipalAxes | None) -> dict[str, Any] | None:
    if axes is None:
        return None
    ratios = axes.explained_variance_ratio.astype(np.float64)
    return {
        "n_components": len(ratios),
        "explained_variance_ratio": float(ratios.sum()),
        "explained_variance_ratio_per_component": ratios.tolist(),
    }


def _write(
    context: StageContext,
    maps: Sequence[TsneMap],
    neighbours: Neighbours,
    test_map: TsneMap,
    metrics: dict[str, Any],
) -> None:
    data, network = context.data, str(context.item)
    write_array(data.maps(network), np.stack([mapped.coordinates for mapped in maps]))
    table = _table(maps[0]).append_column("neighbours", _lists(neighbours.rows))
    write_parquet(data.embedding(network), table.append_column("distances", _lists(neighbours.distances)))
    write_parquet(data.embedding(network, "test"), _table(test_map))
    write_json(data.reduce_metrics(network), metrics)
    write_provenance(
        data.provenance("reduce", network),
        stage=context.name,
        parameters=context.params.reduce.model_dump(mode="json"),
        inputs=[
            data.manifest("train"),
            data.manifest("test"),
            data.features(network),
            data.features(network, "test"),
        ],
        outputs=[
            data.components(network),
            data.maps(network),
            data.embedding(network),
            data.embedding(network, "test"),
            data.reduce_metrics(network),
        ],
    )


def _table(mapped: TsneMap) -> pa.Table:
    x, y = mapped.coordinates.T
    ids = np.arange(len(x), dtype=np.int64)
    return pa.table({"sample_id": ids, "x": np.ascontiguousarray(x), "y": np.ascontiguousarray(y)})


def _lists(rows: NDArray[Any]) -> pa.ListArray:
    """A list for each row of (N, k), without a Python object for each number."""
    n, k = rows.shape
    return pa.ListArray.from_arrays(np.arange(0, n * k + 1, k, dtype=np.int32), rows.ravel())


def main() -> None:
    """Run the stage on the process's arguments and exit."""
    run_stage("reduce", reduce, item="network")


if __name__ == "__main__":
    main()
