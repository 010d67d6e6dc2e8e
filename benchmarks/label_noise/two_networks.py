"""Variants whose time two networks share: two rounds of filter and training, and the means of two networks."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.label_noise.case_folders import CaseFolders
from benchmarks.label_noise.case_images import CaseImages
from benchmarks.label_noise.cases import Case
from benchmarks.label_noise.evidence import read_predictions
from benchmarks.label_noise.folders import hard_link
from pipeline.artifacts.files import open_array, read_json, write_array, write_bytes, write_json
from pipeline.artifacts.metrics import read_dynamics, write_dynamics
from pipeline.artifacts.tables import write_parquet
from pipeline.commands.iterate.rounds import write_kept_images
from pipeline.commands.iterate.running import install_extractor
from pipeline.config.extractors import base_architecture, replicate_number
from pipeline.paths import DataPaths
from pipeline.scoring.registry import SCORERS

_PREDICTING = ("finetune", "extract")
# Scores the first round: the default of the project.
_SCORER = "label_odds"


def run_two_rounds(folders: CaseFolders, case: Case, given: CaseImages, stages: Sequence[str]) -> None:
    """Train on all images, drop the most suspect ones, train again on the rest, and let that network see all images.

    The images that the round drops are then out of sample for the network that scores them, and all others are not.
    """
    network = folders.params.networks[0]
    final = folders.make(case, given)
    half = folders.make(case.part("half"), given)
    first = folders.run(half, _PREDICTING)
    keep = kept_images(SCORERS[_SCORER].values(read_predictions(first, network).scorer_inputs), case.drop_share)
    folder = folders.work / case.part("kept").name
    kept, data = DataPaths(root=folder / "data"), DataPaths(root=final / "data")
    if not kept.prepare_metrics.exists():
        write_bytes(folder / "params.yaml", (half / "params.yaml").read_bytes())
        for file in (first.images("test"), first.manifest("test")):
            hard_link(file, kept.prepare_metrics.with_name(file.name))
        write_kept_images(first, kept, keep, given.labels)
    folders.run(folder, _PREDICTING[:1])
    if not data.provenance("extract", network).exists():
        install_extractor(kept, data, network, keep, folders.params.finetune.model_copy(update={"folds": 1}))
    folders.run(final, stages[1:])


def kept_images(suspicion: NDArray[np.float64], drop_share: float) -> NDArray[np.bool_]:
    """Return all images (N,) but the round(drop_share x N) most suspect; of equal ones the first are dropped first."""
    keep = np.ones(len(suspicion), dtype=np.bool_)
    keep[np.argsort(-suspicion, kind="stable")[: round(drop_share * len(suspicion))]] = False
    return keep


def run_averaged(folders: CaseFolders, case: Case, given: CaseImages, stages: Sequence[str]) -> None:
    """Train two networks with different random numbers, and average all that they say of an image.

    Features, and so components, embedding and neighbors, are those of the first network.
    """
    network = folders.params.networks[0]
    again = f"{base_architecture(network)}-r{replicate_number(network) + 1}"
    final = folders.make(case, given)
    first = folders.run(folders.make(case.part("half"), given), _PREDICTING)
    second_folder = folders.make(case.part("half_again"), given, network=again)
    second = folders.run(second_folder, _PREDICTING, network=again)
    write_averages(DataPaths(root=final / "data"), network, [(first, network), (second, again)])
    folders.run(final, stages[2:])


def write_averages(data: DataPaths, name: str, networks: Sequence[tuple[DataPaths, str]]) -> None:
    """Write the files of `finetune` and `extract` that scorers read: means over networks, and the first's features.

    Args:
        name: of the network in `data`.
        networks: data and network of each; trained on the same images, without folds.
    """
    first, first_name = networks[0]
    probabilities = _mean([np.load(each.probabilities(network)) for each, network in networks])
    n = len(probabilities)
    columns = {
        "sample_id": np.arange(n),
        "predicted": probabilities.argmax(1),
        "confidence": probabilities.max(1),
        "fold": np.zeros(n, dtype=np.int32),
    }
    for file in (DataPaths.features, DataPaths.predictions):
        hard_link(file(first, first_name, "test"), file(data, name, "test"))
    hard_link(first.features(first_name), data.features(name))
    hard_link(first.features_by_network(first_name), data.features_by_network(name))
    write_array(data.probabilities(name), probabilities)
    write_parquet(data.predictions(name), pa.table(columns))
    confidence = [
        open_array(each.training_confidence(network), dtype=np.float32, ndim=1, rows=n) for each, network in networks
    ]
    write_array(data.training_confidence(name), _mean(confidence))
    recorded = [read_dynamics(each.training_dynamics(network), n) for each, network in networks]
    dynamics = [found for found in recorded if found is not None]
    assert len(dynamics) == len(networks), "networks trained in steps have a record"
    margins, events = zip(*dynamics, strict=True)
    write_dynamics(data.training_dynamics(name), _mean(margins), _mean(events))
    for metrics, key in ((DataPaths.extract_metrics, "train_top1"), (DataPaths.finetune_metrics, "top1")):
        accuracies = [read_json(metrics(each, network))[key] for each, network in networks]
        write_json(metrics(data, name), {key: float(np.mean(accuracies))})


def _mean(arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return the mean, of each element over the arrays that are not NaN there; NaN if all are."""
    stacked = np.stack(arrays)
    counts = (~np.isnan(stacked)).sum(axis=0)
    means = np.nansum(stacked, axis=0, dtype=np.float64) / np.maximum(counts, 1)
    return np.where(counts > 0, means, np.nan).astype(np.float32)
