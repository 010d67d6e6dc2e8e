"""Stage `prepare`: decode the images to one size, with labels, splits and a summary of the data set."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array, remove_leftovers, write_json
from pipeline.artifacts.prepared import TRUE_LABEL, planted_note
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import write_parquet
from pipeline.config.prepare import PrepareConfig
from pipeline.datasets.decode import dark_16_bit_note
from pipeline.datasets.image_set import SPLITS, DatasetOptions, ImageSet, check_classes
from pipeline.datasets.label_noise import plant_label_noise
from pipeline.datasets.labels import read_label_file, relabel
from pipeline.datasets.registry import DATASETS
from pipeline.datasets.splits import choose_val_rows, subsample
from pipeline.datasets.store import StoredImages, store_images, summarize
from pipeline.errors import InputError, explain_out_of_memory
from pipeline.stages.harness import StageContext, run_stage


def prepare(context: StageContext) -> None:
    """Write everything in data/prepare/."""
    config, data = context.params.prepare, context.data
    options = DatasetOptions(
        path=config.folder,
        image_size=config.stored_size,
        test_size=config.test_size,
        max_megapixels=config.max_megapixels,
        seed=config.seed,
        downloads=context.work.downloads,
        progress=context.log.progress,
        label_column=config.label_column,
    )
    if config.storage == "files" and config.folder and config.folder.is_file():
        raise InputError(
            f"prepare.path: {config.path} is a file, and storage files needs a folder; unpack it, or use storage: array"
        )
    labels = read_label_file(config.label_path, key="prepare.label_file") if config.label_path else None

    def open_images(exclude: frozenset[str]) -> ImageSet:
        # The label file is checked before anything is decoded.
        images = DATASETS[config.dataset](replace(options, exclude=exclude))
        if config.storage == "files" and images.files_in is None:
            raise InputError(
                f"prepare.storage: files needs image files, but {config.path} has Parquet shards; use storage: array"
            )
        if config.train_size is not None:
            images, others = subsample(images, config.train_size, seed=config.seed)
            exclude |= others
        return relabel(images, labels, excluded=exclude) if labels else images

    remove_leftovers(data.prepare_metrics.parent)
    with explain_out_of_memory(_too_large(config)):
        stored = store_images(
            open_images,
            {split: data.images(split) for split in SPLITS},
            stale_files=[
                data.manifest("train"), data.manifest("test"), data.prepare_metrics, data.provenance("prepare"),
            ],
            source=_source(config),
            image_size=config.stored_size,
            skip_unreadable=config.unreadable == "skip",
            progress=context.log.progress,
        )  # fmt: skip
    metrics = _write_tables(context, stored)
    context.images.append(len(stored.images.train) + len(stored.images.test))
    if stored.images.description:
        context.log.info(f"prepare: {config.path}: {stored.images.description}")
    if note := dark_16_bit_note(stored.brightest_16_bit):
        context.log.info(f"prepare: {config.path}: {note}")
    context.log.info(_describe(config, metrics))


def _too_large(config: PrepareConfig) -> str:
    """Return the message for a full memory; data sets without image files have no large images."""
    stored = f"stored with {config.stored_size} pixels, do not fit the memory"
    if config.path:
        return f"prepare.max_megapixels: images of up to {config.max_megapixels:g}, {stored}; lower it, or image_size"
    return f"prepare.image_size: the images, {stored}; lower it"


def _source(config: PrepareConfig) -> str:
    """Return the name of the data set in messages."""
    source = f"prepare.path: {config.path}" if config.path else f"prepare.dataset: {config.dataset}"
    return f"{source} with prepare.label_file: {config.label_file}" if config.label_file else source


def _write_tables(context: StageContext, stored: StoredImages) -> dict[str, Any]:
    """Write the manifests, the metrics and the provenance; returns the metrics."""
    config, data = context.params.prepare, context.data
    samples = stored.images.samples("train")
    # Split by the labels before noise is planted, so that planting changes no row's flag.
    val = choose_val_rows(
        [sample.path for sample in samples], [sample.label for sample in samples], config.val_size, seed=config.seed
    )
    pixels = open_array(data.images("train"), dtype=np.uint8, ndim=4, rows=len(val))
    true_labels = stored.images.labels("train")
    stored = _with_planted_noise(stored, pixels, config)
    n_planted = int((stored.images.labels("train") != true_labels).sum())
    manifests = {split: _manifest(stored, split) for split in SPLITS}
    train = manifests["train"].append_column("val", pa.array(val))
    if n_planted:
        train = train.append_column(TRUE_LABEL, pa.array(true_labels))
    write_parquet(data.manifest("train"), train)
    write_parquet(data.manifest("test"), manifests["test"])
    metrics = {
        "dataset": config.dataset,
        "n_val": int(val.sum()),
        "image_size": config.image_size,
        "files_in": stored.images.files_in if config.storage == "files" else None,
        "n_relabelled": stored.images.n_relabelled,
        "n_planted": n_planted or None,
        **summarize(stored, pixels),
    }
    write_json(data.prepare_metrics, metrics)
    write_provenance(
        data.provenance("prepare"),
        stage="prepare",
        # The manifests have the hashes and labels; the folders of this machine are irrelevant.
        parameters={
            **config.model_dump(),
            "path": Path(config.path).name if config.path else None,
            "label_file": Path(config.label_file).name if config.label_file else None,
        },
        inputs=[],
        outputs=[
            *(data.images(split) for split in SPLITS),
            *(data.manifest(split) for split in SPLITS),
            data.prepare_metrics,
        ],
    )
    return metrics


def _with_planted_noise(stored: StoredImages, pixels: NDArray[np.uint8], config: PrepareConfig) -> StoredImages:
    """Return the same images with labels changed as `prepare.plant_label_noise` says.

    Raises:
        InputError: no label would change, or a class would have too few images.
    """
    noise = config.plant_label_noise
    if noise is None:
        return stored
    labels = stored.images.labels("train")
    planted = plant_label_noise(
        labels, noise.kind, noise.fraction, images=pixels, rng=np.random.default_rng(noise.seed)
    )
    if (planted == labels).all():
        raise InputError(
            f"prepare.plant_label_noise.fraction: {noise.fraction:g} of {len(labels)} labels rounds to 0; raise it"
        )
    images = stored.images.with_train_labels(planted)
    check_classes(images, f"{_source(config)} with prepare.plant_label_noise")
    return replace(stored, images=images)


def _manifest(stored: StoredImages, split: str) -> pa.Table:
    samples, names = stored.images.samples(split), stored.images.class_names
    return pa.table(
        {
            "sample_id": pa.array(np.arange(len(samples)), pa.int64()),
            "path": pa.array([sample.path for sample in samples], pa.string()),
            "label": pa.array(stored.images.labels(split), pa.int64()),
            "label_name": pa.array([names[sample.label] for sample in samples], pa.string()),
            "sha256": pa.array(stored.sha256[split], pa.string()),
        }
    )


def _describe(config: PrepareConfig, metrics: dict[str, Any]) -> str:
    counts = {name: pairs["count"] for name, pairs in metrics["duplicates"].items()}
    size, storage = config.image_size, ", left in their files" if config.storage == "files" else ""
    changed = f"labels changed by {config.label_file}: {metrics['n_relabelled']}; " if config.label_file else ""
    if config.plant_label_noise:
        unchanged = f", the files in {config.path} unchanged" if config.path else ""
        changed = f"{planted_note(metrics['n_planted'])}{unchanged}; "
    return (
        f"prepare: {config.dataset}: {metrics['n_train']} training images ({metrics['n_val']} for tuning) and "
        f"{metrics['n_test']} test images of {len(metrics['class_names'])} classes at {size}x{size}{storage}; "
        f"{changed}exact duplicates: {counts['within_train']} in train, {counts['within_test']} in test, "
        f"{counts['across']} test images also in train; unreadable: {len(metrics['unreadable'])}"
    )


def main() -> None:
    """Run the stage on the process's arguments and exit."""
    run_stage("prepare", prepare)


if __name__ == "__main__":
    main()
