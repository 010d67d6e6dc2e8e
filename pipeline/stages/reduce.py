"""Stage `reduce`: principal components and one joint t-SNE of all classes, for the features of one network."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array, remove_leftovers, write_array, write_json
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.stage_inputs import input_paths, stage_inputs
from pipeline.artifacts.tables import list_array, read_parquet, write_parquet
from pipeline.config.extractors import replicate_number
from pipeline.config.reduce import ReduceConfig, TsneConfig
from pipeline.embedding import EmbeddingResult, FoldFeatures, embed, tsne_with_progress
from pipeline.errors import InputError, explain_out_of_memory
from pipeline.parallel import task_pool
from pipeline.reduction.checks import check_features, max_perplexity
from pipeline.reduction.tsne import TsneResult
from pipeline.stages.harness import StageContext, run_stage

_MIN_TEST_IMAGES = 4  # the fewest points with a perplexity of 1


def reduce(context: StageContext) -> None:
    """Write everything in data/reduce/ for `context.item`, a network."""
    assert context.item is not None
    network, data, log = context.item, context.data, context.log
    config = _replicate_config(context.params.reduce, replicate_number(network))
    remove_leftovers(data.reduce_metrics(network).parent)
    labels = read_parquet(data.manifest("train"), ["label"])["label"].to_numpy()
    train = _features(context, "train", rows=len(labels))
    test = _features(context, "test", rows=len(read_parquet(data.manifest("test"), ["label"])))
    if len(test) < _MIN_TEST_IMAGES:
        raise InputError(
            f"{data.features(network, 'test')}: {len(test)} test images are too few for t-SNE; "
            f"give the test split at least {_MIN_TEST_IMAGES}"
        )
    out_of_memory = (
        f"reduce.landmarks: PCA and t-SNE of {len(train)} images with {train.shape[1]} features, landmarks: "
        f"{config.landmarks}, do not fit the memory; give fewer landmarks, or fewer reduce.pca.n_components"
    )
    # The bits of t-SNE and of BLAS depend on the number of threads: one setting fixes both.
    with (
        explain_out_of_memory(out_of_memory),
        task_pool(context.dask.scheduler, workers=context.dask.workers, threads=config.tsne.n_jobs) as map_fn,
    ):
        result = embed(
            train,
            labels,
            config,
            components_file=data.components(network),
            log=log,
            map_fn=map_fn,
            by_network=_fold_features(context, train),
        )
        test_components = result.axes.transform(test) if result.axes else np.asarray(test)
        test_embedding = tsne_with_progress(
            test_components, _test_settings(config.tsne, len(test)), log, "t-SNE of the test images"
        )
    metrics = {
        "n_train": len(train),
        "n_test": len(test),
        **result.metrics,
        "test": {"kl_divergence": test_embedding.kl_divergence, "tsne": {"effective": test_embedding.effective}},
    }
    _write(context, result, test_embedding, metrics)
    context.images.append(len(train) + len(test))


def _replicate_config(config: ReduceConfig, number: int) -> ReduceConfig:
    """Return the section with `number` added to the seed of every embedding."""
    tsne = config.tsne.model_copy(update={"random_state": config.tsne.random_state + number})
    # An embedding without a seed takes that of `tsne`, to which it is added above.
    extra_embeddings = tuple(
        {key: value + number if key == "random_state" else value for key, value in changes.items()}
        for changes in config.extra_embeddings
    )
    return config.model_copy(update={"tsne": tsne, "extra_embeddings": extra_embeddings})


def _features(context: StageContext, split: str, rows: int) -> NDArray[np.float32]:
    path = context.data.features(context.item_name, split)
    features = open_array(path, dtype=np.float32, ndim=2, rows=rows)
    check_features(features, str(path))
    return features


def _fold_features(context: StageContext, train: NDArray[np.float32]) -> FoldFeatures | None:
    """Return the features by each network of the folds; None if one network trained on all images."""
    network, data = context.item_name, context.data
    path = data.features_by_network(network)
    features = open_array(path, dtype=np.float32, ndim=3)
    if len(features) == 0:
        return None
    folds = read_parquet(data.predictions(network), {"fold": pa.int32()})["fold"].to_numpy()
    expected = (folds.max(initial=-1) + 1, *train.shape)
    if len(folds) != len(train) or features.shape != expected:
        raise InputError(f"{path}: is {features.shape}, needed is {expected}; delete it and run `dvc repro`")
    for by_one in features:
        check_features(by_one, str(path))
    return FoldFeatures(features=features, folds=folds)


def _test_settings(tsne: TsneConfig, n: int) -> TsneConfig:
    """Return the settings of the embedding of the test images, which is only for display.

    A test split that is too small for the perplexity uses the largest valid one. No result depends on it, and the
    metrics record both.
    """
    return tsne.model_copy(update={"perplexity": min(tsne.perplexity, max_perplexity(n))})


def _write(context: StageContext, result: EmbeddingResult, test_embedding: TsneResult, metrics: dict[str, Any]) -> None:
    data, network = context.data, context.item_name
    write_array(data.embeddings(network), result.coordinates)
    table = _table(result.embeddings[0]).append_column("neighbours", list_array(result.neighbors.rows))
    write_parquet(data.embedding(network), table.append_column("distances", list_array(result.neighbors.distances)))
    write_parquet(data.embedding(network, "test"), _table(test_embedding))
    write_json(data.reduce_metrics(network), metrics)
    write_provenance(
        data.provenance("reduce", network),
        stage=context.name,
        parameters=context.params.reduce.model_dump(mode="json"),
        inputs=input_paths(stage_inputs("reduce", network, context.params, data)),
        outputs=[
            data.components(network),
            data.embeddings(network),
            data.embedding(network),
            data.embedding(network, "test"),
            data.reduce_metrics(network),
        ],
    )


def _table(embedding: TsneResult) -> pa.Table:
    x, y = embedding.coordinates.T
    ids = np.arange(len(x), dtype=np.int64)
    return pa.table({"sample_id": ids, "x": np.ascontiguousarray(x), "y": np.ascontiguousarray(y)})


def main() -> None:
    """Run the stage on the process's arguments and exit."""
    run_stage("reduce", reduce, item="network")


if __name__ == "__main__":
    main()
