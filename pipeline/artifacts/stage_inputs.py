"""The files of earlier stages that stages and commands read. Users edit overrides, so they are not among them."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.artifacts.recorded import StageFiles
from pipeline.config.params import Params
from pipeline.paths import DataPaths

_SPLITS = ("train", "test")


def stage_inputs(stage: str, item: str | None, params: Params, data: DataPaths) -> list[StageFiles]:
    """Return the files of earlier stages that a stage reads, by the stage that wrote them.

    Args:
        stage: name in dvc.yaml.
        item: its network or study, if it has one.
    """
    match stage:
        case "finetune":
            return [prepared_inputs(data)]
        case "extract":
            return [
                prepared_inputs(data),
                StageFiles(stage="finetune", item=item, files=(data.extractor(str(item)),)),
            ]
        case "reduce":
            return _reduce_inputs(str(item), data)
        case "filter":
            inputs = filter_inputs(str(item), data)
            return inputs if params.filter.near_duplicates is None else [*inputs, *_duplicate_inputs(str(item), data)]
        case "train":
            return [prepared_inputs(data), *filters_of_study(str(item), params, data)]
        case "report":
            return [prepared_inputs(data), *report_inputs(params, data)]
    return []


def input_paths(inputs: Sequence[StageFiles]) -> list[Path]:
    """Return each file once, in order; optional ones only if they exist."""
    paths = (path for group in inputs for path in (*group.files, *filter(Path.exists, group.optional)))
    return list(dict.fromkeys(paths))


def prepared_inputs(data: DataPaths) -> StageFiles:
    """Return the images, manifests and metrics of `prepare`."""
    files = (*map(data.images, _SPLITS), *map(data.manifest, _SPLITS), data.prepare_metrics)
    return StageFiles(stage="prepare", files=files)


def _reduce_inputs(network: str, data: DataPaths) -> list[StageFiles]:
    return [
        StageFiles(stage="prepare", files=tuple(map(data.manifest, _SPLITS))),
        StageFiles(
            stage="extract",
            item=network,
            files=(
                data.features(network),
                data.features_by_network(network),
                data.features(network, "test"),
                data.predictions(network),
            ),
        ),
    ]


def filter_inputs(network: str, data: DataPaths) -> list[StageFiles]:
    """Return what `filter` reads of a network."""
    return [
        StageFiles(stage="prepare", files=(data.manifest("train"), data.prepare_metrics)),
        StageFiles(
            stage="finetune",
            item=network,
            files=(data.training_confidence(network),),
            optional=(data.training_dynamics(network),),
        ),
        StageFiles(stage="extract", item=network, files=(data.predictions(network), data.probabilities(network))),
        StageFiles(
            stage="reduce",
            item=network,
            files=(data.embedding(network), data.components(network), data.embeddings(network)),
        ),
    ]


def _duplicate_inputs(network: str, data: DataPaths) -> list[StageFiles]:
    """Return what only the search for near duplicates reads."""
    features = (data.features(network), data.features(network, "test"), data.features_by_network(network))
    return [
        StageFiles(stage="prepare", files=(*map(data.images, _SPLITS), data.manifest("test"))),
        StageFiles(stage="extract", item=network, files=features),
    ]


def filters_of_study(name: str, params: Params, data: DataPaths) -> list[StageFiles]:
    """Return the kept images of each filter whose images a study trains on, and with suggested labels its points."""
    study = params.studies[name]
    if set(study.arms) == {"full"}:
        return []
    suggests = study.relabel_above is not None
    return [
        StageFiles(
            stage="filter",
            item=network,
            files=(data.kept(network), data.points(network)) if suggests else (data.kept(network),),
        )
        for network in study.filter_networks
    ]


def study_tables(name: str, data: DataPaths) -> StageFiles:
    """Return the tables of a study's runs."""
    return StageFiles(stage="train", item=name, files=(data.runs(name), data.history(name), data.correct(name)))


def network_results(network: str, data: DataPaths) -> list[StageFiles]:
    """Return the results of a network and its filter."""
    return [
        StageFiles(stage="finetune", item=network, files=(data.finetune_metrics(network),)),
        StageFiles(stage="reduce", item=network, files=(data.embedding(network, "test"), data.reduce_metrics(network))),
        StageFiles(
            stage="filter",
            item=network,
            files=(data.points(network), data.kept(network), data.filter_metrics(network)),
            optional=(data.near_duplicates(network),),
        ),
    ]


def map_inputs(network: str, data: DataPaths) -> list[StageFiles]:
    """Return what the visualizer shows of a network, without the images, which may take many gigabytes."""
    return [
        StageFiles(stage="prepare", files=(data.manifest("train"), data.prepare_metrics)),
        StageFiles(
            stage="filter",
            item=network,
            files=(data.points(network), data.filter_metrics(network)),
            optional=(data.near_duplicates(network),),
        ),
    ]


def iteration_inputs(network: str, data: DataPaths) -> list[StageFiles]:
    """Return what `iterate` reads of round 0."""
    return [
        StageFiles(stage="prepare", files=(data.manifest("train"), data.prepare_metrics)),
        StageFiles(stage="finetune", item=network, files=(data.finetune_metrics(network),)),
        StageFiles(stage="filter", item=network, files=(data.points(network),)),
    ]


def report_inputs(params: Params, data: DataPaths) -> list[StageFiles]:
    """Return what the report reads of every network and study, without the data set; only measured landscapes."""
    inputs = [group for name in params.networks for group in network_results(name, data)]
    for name in params.studies:
        inputs.append(study_tables(name, data))
        if data.landscape(name).exists():
            inputs.append(StageFiles(stage="landscape", item=name, files=(data.landscape(name),)))
    return inputs


def export_inputs(network: str, studies: Sequence[str], data: DataPaths, *, reads_images: bool) -> list[StageFiles]:
    """Return what `export` reads of a network's filter and of the studies; an archive has no trained networks.

    Args:
        reads_images: whether it reads the prepared images, and not the files that they were made of.
    """
    images = tuple(map(data.images, _SPLITS)) if reads_images else ()
    return [
        StageFiles(stage="prepare", files=(*images, *map(data.manifest, _SPLITS), data.prepare_metrics)),
        StageFiles(stage="filter", item=network, files=(data.points(network),)),
        *(
            StageFiles(stage="train", item=name, files=(data.runs(name), data.trained_weights(name)))
            for name in studies
            if data.trained_weights(name).exists()
        ),
    ]


def comparison_inputs(studies: Sequence[str], networks: Sequence[str], data: DataPaths) -> list[StageFiles]:
    """Return what `compare` reads of an experiment, which may lack test images and report.

    Of the report it reads the record alone.
    """
    prepared = tuple(path for path in (data.manifest("test"), data.prepare_metrics) if path.exists())
    return [
        *([StageFiles(stage="prepare", files=prepared)] if prepared else []),
        *(StageFiles(stage="train", item=name, files=(data.runs(name), data.correct(name))) for name in studies),
        *(
            StageFiles(stage="filter", item=name, files=(data.kept(name), data.filter_metrics(name)))
            for name in networks
        ),
        *([StageFiles(stage="report", files=())] if data.provenance("report").exists() else []),
    ]
