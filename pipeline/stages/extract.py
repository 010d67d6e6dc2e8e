"""Stage `extract`: penultimate features and class probabilities of the training and test images."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from pipeline import distributed
from pipeline.artifacts.files import create_array, open_array, remove_leftovers, write_json
from pipeline.artifacts.finished import FileCache
from pipeline.artifacts.prepared import PreparedData, load_prepared, prepared_digest, prepared_files
from pipeline.artifacts.provenance import sha256_of_file, write_provenance
from pipeline.artifacts.tables import write_parquet
from pipeline.config.extractors import base_architecture
from pipeline.distributed import LaunchPlan, World
from pipeline.energy import UNKNOWN_ENERGY
from pipeline.errors import InputError, explain_out_of_memory
from pipeline.features.extract import FoldPasses, extract_by_fold, extract_features, features_cache_key
from pipeline.models import feature_dimension, full_name
from pipeline.paths import DataPaths
from pipeline.stages.harness import StageContext
from pipeline.stages.parallel import run_parallel_stage
from pipeline.training.checkpointing import STALE_AFTER_S
from pipeline.training.evaluation import rank_rows
from pipeline.training.weights import FoldNetworks, load_fold_networks

# Each process takes a share of the rows, so any number of processes fits.
_MAX_PROCESSES = 4096
_COPIED_ROWS = 4096


def extract(context: StageContext, world: World) -> None:
    """Extract both splits' features with the extractor's networks, or restore them from the cache."""
    name, paths = context.item_name, context.data
    extractor = load_fold_networks(paths.extractor(name), world.device)
    data = load_prepared(paths, folder=context.image_folder)
    _check_extractor(context, extractor, data)
    if world.is_main:
        remove_leftovers(paths.features(name).parent)
    cache = FileCache(context.work.file_cache(context.name))
    files, key = _output_files(paths, name), _cache_key(context, world) if world.is_main else ""
    start = time.monotonic()
    # The disk of rank 0 is authoritative.
    cached_seconds = distributed.broadcast_object(cache.restore(key, files) if world.is_main else None)
    if cached_seconds is None:
        with explain_out_of_memory(
            f"extract.batch_size: a pass of {context.params.extract.batch_size} images does not fit the memory; "
            "lower it"
        ):
            _extract_train(context, world, extractor, data)
            _extract_test(context, world, extractor, data)
    passes = len(extractor.networks) * (2 if context.params.extract.flip_tta else 1)
    context.images.append((len(data.train.labels) + len(data.test.labels)) * passes)
    if not world.is_main:
        return
    if cached_seconds is None:
        cache.put(key, files, seconds=time.monotonic() - start)
    else:
        context.log.info(f"{name}: features were extracted before; the same files are written")
        context.earlier_seconds.append(cached_seconds)
        context.extra_joules.append(UNKNOWN_ENERGY)
    cache.clear(max_age_s=STALE_AFTER_S)
    write_provenance(
        paths.provenance("extract", name),
        stage=context.name,
        parameters=context.params.extract.model_dump(mode="json"),
        inputs=[*prepared_files(paths), paths.extractor(name)],
        outputs=[*files.values()],
    )


def _output_files(paths: DataPaths, name: str) -> dict[str, Path]:
    """Return the files that the stage writes, by file name."""
    per_split = [file(name, split) for split in ("train", "test") for file in (paths.features, paths.predictions)]
    once = (paths.features_by_network(name), paths.probabilities(name), paths.extract_metrics(name))
    return {path.name: path for path in (*per_split, *once)}


def _cache_key(context: StageContext, world: World) -> str:
    """Return a digest of everything that determines the bits of the output files."""
    values = {
        "network": sha256_of_file(context.data.extractor(context.item_name)),
        "data": prepared_digest(context.data),
        "settings": context.params.extract.model_dump(mode="json"),
    }
    return features_cache_key(values, module="pipeline.stages.extract", world=world)


def _check_extractor(context: StageContext, extractor: FoldNetworks, data: PreparedData) -> None:
    """Check that the extractor was trained for this network and these prepared images.

    Raises:
        InputError: naming the extractor's file, what differs, and both values.
    """
    path, first = context.data.extractor(context.item_name), extractor.networks[0]
    actual = (first.network, first.format.image_size, first.class_names)
    expected = (full_name(base_architecture(context.item_name)), data.image_size, data.class_names)
    for what, has, needs in zip(("network", "image_size", "class_names"), actual, expected, strict=True):
        if has != needs:
            raise InputError(f"{path}: its {what} is {has}, needed is {needs}; run `dvc repro`")
    if extractor.folds is not None and len(extractor.folds) != len(data.train.labels):
        has, needs = len(extractor.folds), len(data.train.labels)
        raise InputError(f"{path}: its folds are of {has} training images, needed are {needs}; run `dvc repro`")


def _extract_train(context: StageContext, world: World, extractor: FoldNetworks, data: PreparedData) -> None:
    name, paths, n = context.item_name, context.data, len(data.train.labels)
    config = context.params.extract
    folds = np.zeros(n, np.int32) if extractor.folds is None else extractor.folds
    n_networks = len(extractor.networks)
    with (
        _shared_array(paths.features(name), (n, _dimensions(name)), world) as out,
        # Without folds it would be a copy of the features.
        _shared_array(
            paths.features_by_network(name), (n_networks if n_networks > 1 else 0, n, _dimensions(name)), world
        ) as by_network,
        _shared_array(paths.probabilities(name), (n, len(data.class_names)), world) as probabilities,
        context.log.progress(f"{context.name} train", len(rank_rows(n, world)), "images") as progress,
    ):
        explained = extract_by_fold(
            extractor,
            data.train.source,
            by_network if n_networks > 1 else out[None],
            probabilities,
            passes=FoldPasses(
                batch_size=config.batch_size, flip_tta=config.flip_tta, average_folds=_averages_folds(context)
            ),
            world=world,
            progress=progress,
        )
        if n_networks > 1:
            _copy_held_out(by_network, folds, out, rank_rows(n, world))
    if not world.is_main:
        return
    table = _predictions(open_array(paths.probabilities(name), dtype=np.float32, ndim=2, rows=n))
    write_parquet(paths.predictions(name), table.append_column("fold", pa.array(folds)))
    top1 = float((table["predicted"].to_numpy() == data.train.labels).mean())
    metrics = {"folds": len(extractor.networks), "train_top1": top1, "aligned_variance": explained}
    write_json(paths.extract_metrics(name), metrics)
    origin = "on which the network was trained"
    if explained:
        origin = f"each by {'all networks' if _averages_folds(context) else 'a network that was not trained on it'}"
    context.log.info(f"{name}: top-1 {top1:.4f} on the {n} training images, {origin}")


def _extract_test(context: StageContext, world: World, extractor: FoldNetworks, data: PreparedData) -> None:
    name, paths, n = context.item_name, context.data, len(data.test.labels)
    probabilities = np.zeros((n, len(data.class_names)), dtype=np.float32)
    with (
        _shared_array(paths.features(name, "test"), (n, _dimensions(name)), world) as out,
        context.log.progress(f"{context.name} test", len(rank_rows(n, world)), "images") as progress,
    ):
        extract_features(
            extractor.networks,
            data.test.source,
            out,
            probabilities,
            batch_size=context.params.extract.batch_size,
            flip_tta=context.params.extract.flip_tta,
            world=world,
            progress=progress,
        )
    # Each rank has filled its own rows and left the others at zero.
    probabilities = distributed.all_reduce_sum_(torch.from_numpy(probabilities).to(world.device)).cpu().numpy()
    if world.is_main:
        write_parquet(paths.predictions(name, "test"), _predictions(probabilities))


def _copy_held_out(
    by_network: NDArray[np.float32], folds: NDArray[np.int32], out: NDArray[np.float32], rows: NDArray[np.int64]
) -> None:
    """Copy each of `rows` from the network that did not train on it, in blocks: both arrays may exceed memory."""
    for start in range(0, len(rows), _COPIED_ROWS):
        block = rows[start : start + _COPIED_ROWS]
        out[block] = by_network[folds[block], block]


@contextmanager
def _shared_array(path: Path, shape: tuple[int, ...], world: World) -> Iterator[NDArray[np.float32]]:
    """Yield a float32 array that becomes `path` when all ranks have left the block; each rank writes its own rows."""
    with ExitStack() as stack:
        # Rank 0 creates the file; the others map it.
        created = stack.enter_context(create_array(path, shape, np.float32)) if world.is_main else None
        shared = distributed.broadcast_object(str(created.filename) if created is not None else None)
        out = created if created is not None else np.load(str(shared), mmap_mode="r+")
        yield out
        out.flush()
        distributed.barrier()


def _averages_folds(context: StageContext) -> bool:
    return context.params.extract.fold_probabilities == "averaged"


def _dimensions(name: str) -> int:
    return feature_dimension(base_architecture(name))


def _predictions(probabilities: NDArray[np.float32]) -> pa.Table:
    """Return a table of the most probable class of each image and its probability."""
    columns = {
        "sample_id": np.arange(len(probabilities)),
        "predicted": probabilities.argmax(1),
        "confidence": probabilities.max(1),
    }
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def main() -> None:
    """Run the stage on the process's arguments and exit: `python -m pipeline.stages.extract --network NAME`."""
    run_parallel_stage(
        "extract",
        extract,
        item="network",
        plan=lambda _: LaunchPlan(workers="auto", valid_world_sizes=range(1, _MAX_PROCESSES + 1), threads="auto"),
    )


if __name__ == "__main__":
    main()
