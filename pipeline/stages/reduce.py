"""`reduce`: principal components and one joint t-SNE map of all classes, for one network's features."""

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
from pipeline.reduction.checks import check_features, check_settings, largest_perplexity
from pipeline.reduction.pca import PrincipalAxes, fit_principal_axes
from pipeline.reduction.quality import exact_neighbours, knn_label_accuracy, neighbour_recall, quality_sample
from pipeline.reduction.tasks import Map
from pipeline.reduction.tsne import TsneMap, tsne_map
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
    check_settings(
        *train.shape,
        n_components=config.pca.n_components,
        perplexity=config.tsne.perplexity,
        neighbors=config.neighbors,
    )
    if len(test) < _LEAST_TEST_IMAGES:
        raise InputError(
            f"{data.features(network, 'test')}: {len(test)} test images make no map; "
            f"give the test split at least {_LEAST_TEST_IMAGES}"
        )
    # Like t-SNE, BLAS gives other bits with other numbers of threads: one setting pins both.
    with fan_out(context.dask.scheduler, workers=context.dask.workers, threads=config.tsne.n_jobs) as run:
        axes = _axes(train, config, log, run)
        components = axes.project(train, run=run) if axes else np.asarray(train)
        test_components = axes.project(test) if axes else np.asarray(test)
        train_map = _map(components, config.tsne, config.neighbors, log, "t-SNE of the training images")
        quality = _quality(components, train_map, labels, config.neighbors)
        test_settings = _test_settings(config.tsne, len(test))
        # Neighbours of the test images go nowhere, so one is enough.
        test_map = _map(test_components, test_settings, 1, log, "t-SNE of the test images")
    log.info(
        f"map of {len(train)} images: KL divergence {train_map.kl_divergence:.3f}, "
        f"{quality['neighbour_preservation']:.1%} of {config.neighbors} nearest neighbours preserved"
    )
    metrics = {
        "n_train": len(train),
        "n_test": len(test),
        "pca": _pca_metrics(axes),
        "kl_divergence": train_map.kl_divergence,
        **quality,
        "tsne": {"requested": config.tsne.model_dump(), "effective": train_map.effective},
        "test": {"kl_divergence": test_map.kl_divergence, "tsne": {"effective": test_map.effective}},
    }
    _write(context, components, train_map, test_map, metrics)
    context.images.append(len(train) + len(test))


def _of_replicate(config: ReduceConfig, number: int) -> ReduceConfig:
    tsne = config.tsne.model_copy(update={"random_state": config.tsne.random_state + number})
    return config.model_copy(update={"tsne": tsne})


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


def _map(points: NDArray[np.float32], tsne: TsneConfig, neighbours: int, log: RunLog, name: str) -> TsneMap:
    total = tsne.early_exaggeration_iter + tsne.n_iter
    with log.progress(name, total, "iterations") as bar:

        def report(done: int, divergence: float) -> None:
            bar.update(done, f"KL {divergence:.3f}")

        return tsne_map(points, tsne.model_dump(), n_neighbours=neighbours, report=report)


def _quality(components: NDArray[np.float32], mapped: TsneMap, labels: NDArray[np.int64], k: int) -> dict[str, Any]:
    """Shares, 0 to 1, over a fixed sample of images and their `k` exact nearest neighbours (Euclidean)."""
    rows = quality_sample(len(labels))
    before = exact_neighbours(components, rows, k)
    after = exact_neighbours(mapped.coordinates, rows, k)
    return {
        "quality_sample": len(rows),
        "quality_neighbours": k,
        "neighbour_preservation": neighbour_recall(after, before),
        "neighbour_search_recall": neighbour_recall(mapped.neighbours[rows], before),
        "knn_label_accuracy": {
            "components": knn_label_accuracy(before, rows, labels),
            "map": knn_label_accuracy(after, rows, labels),
        },
    }


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
    components: NDArray[np.float32],
    train_map: TsneMap,
    test_map: TsneMap,
    metrics: dict[str, Any],
) -> None:
    data, network = context.data, str(context.item)
    write_array(data.components(network), components)
    neighbours = pa.array(list(train_map.neighbours), type=pa.list_(pa.int32()))
    write_parquet(data.embedding(network), _table(train_map).append_column("neighbours", neighbours))
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
            data.embedding(network),
            data.embedding(network, "test"),
            data.reduce_metrics(network),
        ],
    )


def _table(mapped: TsneMap) -> pa.Table:
    x, y = mapped.coordinates.T
    ids = np.arange(len(x), dtype=np.int64)
    return pa.table({"sample_id": ids, "x": np.ascontiguousarray(x), "y": np.ascontiguousarray(y)})


def main() -> None:
    """Run the stage on the process's arguments and exit."""
    run_stage("reduce", reduce, item="network")


if __name__ == "__main__":
    main()
