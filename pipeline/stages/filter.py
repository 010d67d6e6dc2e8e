"""Stage `filter`: choose the training images to drop from one network's features, embedding and predictions."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from pipeline.artifacts.files import remove_leftovers, write_json
from pipeline.artifacts.prepared import planted_note
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.stage_inputs import input_paths, stage_inputs
from pipeline.artifacts.tables import protect_cells, write_csv, write_parquet
from pipeline.config.extractors import replicate_number
from pipeline.errors import explain_out_of_memory
from pipeline.filtering.apply import FilterContext, apply_filter
from pipeline.filtering.inputs import load_filter_inputs
from pipeline.filtering.near_duplicates import (
    duplicates_metrics,
    duplicates_sentence,
    duplicates_table,
    find_duplicates,
)
from pipeline.filtering.tables import filter_metrics, kept_and_dropped, points_table
from pipeline.parallel import task_pool
from pipeline.stages.harness import StageContext, run_stage
from pipeline.typing import Item, MapFn, Result


def filter_images(context: StageContext) -> None:
    """Write everything in data/filter/<network>/ for `context.item`, a network."""
    assert context.item is not None
    data, config, network = context.data, context.params.filter, context.item
    remove_leftovers(data.points(network).parent)
    inputs = load_filter_inputs(data, network)
    # One thread per task on every machine: the number of threads determines bits.
    with (
        explain_out_of_memory(
            _too_large(len(inputs.scorer_inputs.labels), context.dask.scheduler, context.dask.workers)
        ),
        task_pool(context.dask.scheduler, workers=context.dask.workers, threads=1) as map_fn,
    ):
        duplicates = None if config.near_duplicates is None else find_duplicates(data, network, context.log)
        filter_context = FilterContext(
            network=network,
            class_names=inputs.class_names,
            overrides=inputs.overrides,
            replicate=replicate_number(network),
            duplicates=duplicates if config.near_duplicates == "drop" else None,
        )
        scorer_inputs = replace(inputs.scorer_inputs, map_fn=_with_progress(map_fn, context))
        sieved = apply_filter(scorer_inputs, config, filter_context)
    points = points_table(inputs.images, inputs.scorer_inputs, sieved, inputs.class_names)
    metrics = filter_metrics(inputs.scorer_inputs, sieved, config, filter_context)
    if duplicates is not None:
        n_dropped = 0 if sieved.redundant is None else int(sieved.redundant.sum())
        metrics["near_duplicates"] = duplicates_metrics(duplicates, n_dropped)
    kept, dropped = kept_and_dropped(points, inputs.n_planted)
    write_parquet(data.points(network), points)
    write_csv(data.kept(network), protect_cells(kept))
    write_csv(data.dropped(network), protect_cells(dropped))
    write_parquet(data.near_duplicates(network), duplicates_table(duplicates))
    write_json(data.filter_metrics(network), metrics)
    write_provenance(
        data.provenance("filter", network),
        stage=context.name,
        parameters=config.model_dump(mode="json"),
        inputs=[*input_paths(stage_inputs("filter", network, context.params, data)), data.overrides],
        outputs=[
            data.points(network),
            data.kept(network),
            data.dropped(network),
            data.near_duplicates(network),
            data.filter_metrics(network),
        ],
    )
    if inputs.n_planted is not None:
        context.log.info(f"{network}: {planted_note(inputs.n_planted)}")
    if sieved.estimate is not None:
        in_sample = inputs.scorer_inputs.folds is None
        note = "; too low in sample, since the network has learned the labels: set finetune.folds" if in_sample else ""
        context.log.info(f"filter.drop_fraction: {network}: {sieved.estimate}{note}")
    if duplicates is not None:
        context.log.info(f"filter.near_duplicates: {network}: {duplicates_sentence(metrics['near_duplicates'])}")
    if metrics["share_note"]:
        context.log.info(f"filter.drop_fraction: {metrics['share_note']}")
    context.log.info(
        f"{network}: {metrics['n_kept']} of {metrics['n_total']} images kept ({metrics['kept_share']:.2%}); "
        f"{metrics['n_noise']} are suspect by {config.scorer.name}, {len(inputs.overrides)} decided by hand"
    )
    context.images.append(metrics["n_total"])


def _with_progress(map_fn: MapFn, context: StageContext) -> MapFn:
    """Return the map over classes with a bar; a scorer calls it once, a search of eps several times."""

    def mapped(task: Callable[[Item], Result], classes: Iterable[Item], /) -> Iterator[Result]:
        listed = list(classes)
        with context.log.progress(context.name, len(listed), "classes") as bar:
            for result in map_fn(task, listed):
                bar.update()
                yield result

    return mapped


def _too_large(n_images: int, scheduler: str, workers: int) -> str:
    problem = f"the filter of {n_images} images does not fit the memory"
    if scheduler == "local" and workers > 1:
        return f"dask.workers: {problem} of {workers} processes; give fewer"
    return f"prepare.train_size: {problem}; give a smaller share, or use a machine with more"


def main() -> None:
    """Run the stage on the process's arguments and exit."""
    run_stage("filter", filter_images, item="network")


if __name__ == "__main__":
    main()
