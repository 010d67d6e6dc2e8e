"""Penultimate features of the training and the test images."""

from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from pipeline import distributed
from pipeline.artifacts.arrays import create_array
from pipeline.artifacts.atomic import remove_leftovers
from pipeline.artifacts.prepared import PreparedData, PreparedSplit, load_prepared
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import write_parquet
from pipeline.config.networks import architecture_of
from pipeline.distributed import Ranks, WorkerPlan
from pipeline.errors import InputError
from pipeline.features.extract import extract_features
from pipeline.models import feature_dimension
from pipeline.stages.harness import StageContext
from pipeline.stages.parallel import run_parallel_stage
from pipeline.training.evaluate import rows_of_rank
from pipeline.training.weights import TrainedNetwork, load_trained

# Each takes its rows, so that any number will do.
_MOST_PROCESSES = 4096


def extract(context: StageContext, ranks: Ranks) -> None:
    """Embed both splits with the fine-tuned network."""
    name, paths = str(context.item), context.data
    network = load_trained(paths.extractor(name), ranks.device)
    data = load_prepared(paths, folder=context.image_folder)
    _check_fits(context, network, data)
    if ranks.is_main:
        remove_leftovers(paths.features(name).parent)
    for split, images in (("train", data.train), ("test", data.test)):
        _extract_split(context, ranks, network, split, images)
    if not ranks.is_main:
        return
    outputs = [
        path for split in ("train", "test") for path in (paths.features(name, split), paths.predictions(name, split))
    ]
    write_provenance(
        paths.provenance("extract", name),
        stage=context.name,
        parameters=context.params.extract.model_dump(mode="json"),
        inputs=[paths.images("train"), paths.images("test"), paths.extractor(name)],
        outputs=outputs,
    )


def _check_fits(context: StageContext, network: TrainedNetwork, data: PreparedData) -> None:
    given = (network.network, network.format.image_size, network.class_names)
    wanted = (architecture_of(str(context.item)), data.image_size, data.class_names)
    for what, has, needs in zip(("network", "image_size", "class_names"), given, wanted, strict=True):
        if has != needs:
            raise InputError(
                f"{context.data.extractor(str(context.item))}: its {what} is {has}, needed is {needs}; run `dvc repro`"
            )


def _extract_split(
    context: StageContext, ranks: Ranks, network: TrainedNetwork, split: str, data: PreparedSplit
) -> None:
    name, paths = str(context.item), context.data
    shape = (len(data.labels), feature_dimension(architecture_of(name)))
    own_share = len(rows_of_rank(shape[0], ranks))
    with ExitStack() as stack:
        # Rank 0 owns the file; the others map it and write their own rows.
        own = (
            stack.enter_context(create_array(paths.features(name, split), shape, np.float32)) if ranks.is_main else None
        )
        shared = distributed.broadcast(str(own.filename) if own is not None else None)
        out = own if own is not None else np.load(str(shared), mmap_mode="r+")
        progress = stack.enter_context(context.log.progress(f"{context.name} {split}", own_share, "images"))
        predictions = extract_features(
            network, data.source, out, batch_size=context.params.extract.batch_size, ranks=ranks, progress=progress
        )
        out.flush()
        distributed.barrier()
    context.images.append(shape[0])
    if ranks.is_main:
        table = pa.table(
            {
                "sample_id": pa.array(np.arange(shape[0])),
                "predicted": pa.array(predictions.predicted),
                "confidence": pa.array(predictions.confidence),
            }
        )
        write_parquet(paths.predictions(name, split), table)


def main() -> None:
    """`python -m pipeline.stages.extract --network NAME`."""
    run_parallel_stage(
        "extract",
        extract,
        item="network",
        plan=lambda _: WorkerPlan(workers="auto", fitting=range(1, _MOST_PROCESSES + 1), threads="auto"),
    )


if __name__ == "__main__":
    main()
