"""Penultimate features of the training and the test images."""

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
from pipeline.features.extract import extract_by_fold, extract_features, features_cache_key
from pipeline.models import feature_dimension
from pipeline.paths import DataPaths
from pipeline.stages.harness import StageContext
from pipeline.stages.parallel import run_parallel_stage
from pipeline.training.checkpointing import STALE_AFTER_S
from pipeline.training.evaluation import rank_rows
from pipeline.training.weights import FoldNetworks, load_fold_networks

# Each takes its rows, so that any number will do.
_MAX_PROCESSES = 4096


def extract(context: StageContext, ranks: World) -> None:
    """Embed both splits with the fine-tuned network, or with those of its folds, unless that was done before."""
    name, paths = str(context.item), context.data
    extractor = load_fold_networks(paths.extractor(name), ranks.device)
    data = load_prepared(paths, folder=context.image_folder)
    _check_fits(context, extractor, data)
    if ranks.is_main:
        remove_leftovers(paths.features(name).parent)
    finished = FileCache(context.work.file_cache(context.name))
    files, key = _files(paths, name), _key(context, ranks) if ranks.is_main else ""
    start = time.monotonic()
    # Rank 0's disk decides.
    before_s = distributed.broadcast(finished.restore(key, files) if ranks.is_main else None)
    if before_s is None:
        with explain_out_of_memory(
            f"extract.batch_size: a pass of {context.params.extract.batch_size} images does not fit the memory; "
            "give less"
        ):
            _extract_train(context, ranks, extractor, data)
            _extract_test(context, ranks, extractor, data)
    passes = len(extractor.networks) * (2 if context.params.extract.flip_tta else 1)
    context.images.append((len(data.train.labels) + len(data.test.labels)) * passes)
    if not ranks.is_main:
        return
    if before_s is None:
        finished.put(key, files, seconds=time.monotonic() - start)
    else:
        context.log.info(f"{name}: features were extracted before; the same files are written")
        context.earlier_seconds.append(before_s)
        context.extra_joules.append(UNKNOWN_ENERGY)
    finished.clear(max_age_s=STALE_AFTER_S)
    write_provenance(
        paths.provenance("extract", name),
        stage=context.name,
        parameters=context.params.extract.model_dump(mode="json"),
        inputs=[*prepared_files(paths), paths.extractor(name)],
        outputs=[*files.values()],
    )


def _files(paths: DataPaths, name: str) -> dict[str, Path]:
    """What the stage writes, by file name."""
    of_splits = [file(name, split) for split in ("train", "test") for file in (paths.features, paths.predictions)]
    return {path.name: path for path in (*of_splits, paths.probabilities(name), paths.extract_metrics(name))}


def _key(context: StageContext, ranks: World) -> str:
    """Of all that decides the bits of these files."""
    values = {
        "network": sha256_of_file(context.data.extractor(str(context.item))),
        "data": prepared_digest(context.data),
        "settings": context.params.extract.model_dump(mode="json"),
    }
    return features_cache_key(values, module="pipeline.stages.extract", ranks=ranks)


def _check_fits(context: StageContext, extractor: FoldNetworks, data: PreparedData) -> None:
    path, first = context.data.extractor(str(context.item)), extractor.networks[0]
    given = (first.network, first.format.image_size, first.class_names)
    wanted = (base_architecture(str(context.item)), data.image_size, data.class_names)
    for what, has, needs in zip(("network", "image_size", "class_names"), given, wanted, strict=True):
        if has != needs:
            raise InputError(f"{path}: its {what} is {has}, needed is {needs}; run `dvc repro`")
    if extractor.folds is not None and len(extractor.folds) != len(data.train.labels):
        has, needs = len(extractor.folds), len(data.train.labels)
        raise InputError(f"{path}: its folds are of {has} training images, needed are {needs}; run `dvc repro`")


def _extract_train(context: StageContext, ranks: World, extractor: FoldNetworks, data: PreparedData) -> None:
    name, paths, n = str(context.item), context.data, len(data.train.labels)
    folds = np.zeros(n, np.int32) if extractor.folds is None else extractor.folds
    with (
        _shared_array(paths.features(name), (n, _dimensions(name)), ranks) as out,
        _shared_array(paths.probabilities(name), (n, len(data.class_names)), ranks) as sure,
        context.log.progress(f"{context.name} train", len(rank_rows(n, ranks)), "images") as progress,
    ):
        aligned = extract_by_fold(
            extractor.networks,
            folds,
            data.train.source,
            out,
            sure,
            batch_size=context.params.extract.batch_size,
            flip_tta=context.params.extract.flip_tta,
            ranks=ranks,
            progress=progress,
        )
    if not ranks.is_main:
        return
    table = _predictions(open_array(paths.probabilities(name), dtype=np.float32, ndim=2, rows=n))
    write_parquet(paths.predictions(name), table.append_column("fold", pa.array(folds)))
    top1 = float((table["predicted"].to_numpy() == data.train.labels).mean())
    metrics = {"folds": len(extractor.networks), "train_top1": top1, "aligned_variance": aligned}
    write_json(paths.extract_metrics(name), metrics)
    how = "each by a network that was not trained on it" if aligned else "on which the network was trained"
    context.log.info(f"{name}: top-1 {top1:.4f} on the {n} training images, {how}")


def _extract_test(context: StageContext, ranks: World, extractor: FoldNetworks, data: PreparedData) -> None:
    name, paths, n = str(context.item), context.data, len(data.test.labels)
    sure = np.zeros((n, len(data.class_names)), dtype=np.float32)
    with (
        _shared_array(paths.features(name, "test"), (n, _dimensions(name)), ranks) as out,
        context.log.progress(f"{context.name} test", len(rank_rows(n, ranks)), "images") as progress,
    ):
        extract_features(
            extractor.networks,
            data.test.source,
            out,
            sure,
            batch_size=context.params.extract.batch_size,
            flip_tta=context.params.extract.flip_tta,
            ranks=ranks,
            progress=progress,
        )
    sure = distributed.all_reduce_sum_(torch.from_numpy(sure).to(ranks.device)).cpu().numpy()
    if ranks.is_main:
        write_parquet(paths.predictions(name, "test"), _predictions(sure))


@contextmanager
def _shared_array(path: Path, shape: tuple[int, int], ranks: World) -> Iterator[NDArray[np.float32]]:
    """A float32 array that becomes `path` when all ranks have left the block; each writes its own rows."""
    with ExitStack() as stack:
        # Rank 0 owns the file; the others map it.
        own = stack.enter_context(create_array(path, shape, np.float32)) if ranks.is_main else None
        shared = distributed.broadcast(str(own.filename) if own is not None else None)
        out = own if own is not None else np.load(str(shared), mmap_mode="r+")
        yield out
        out.flush()
        distributed.barrier()


def _dimensions(name: str) -> int:
    return feature_dimension(base_architecture(name))


def _predictions(probabilities: NDArray[np.float32]) -> pa.Table:
    """The most probable class of each image and its probability."""
    columns = {
        "sample_id": np.arange(len(probabilities)),
        "predicted": probabilities.argmax(1),
        "confidence": probabilities.max(1),
    }
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def main() -> None:
    """`python -m pipeline.stages.extract --network NAME`."""
    run_parallel_stage(
        "extract",
        extract,
        item="network",
        plan=lambda _: LaunchPlan(workers="auto", valid_world_sizes=range(1, _MAX_PROCESSES + 1), threads="auto"),
    )


if __name__ == "__main__":
    main()
