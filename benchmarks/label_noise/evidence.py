"""What the scorers read of a case: all files up to `reduce`, or those of `finetune` and `extract` alone."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array, read_json
from pipeline.artifacts.metrics import read_dynamics
from pipeline.artifacts.tables import read_parquet
from pipeline.filtering.inputs import load_filter_inputs
from pipeline.paths import DataPaths
from pipeline.scoring.base import ScorerInputs


@dataclass(frozen=True, kw_only=True, eq=False)
class CaseEvidence:
    """What scorers read of N training images.

    Attributes:
        features: (N, D).
        class_names: by class.
    """

    scorer_inputs: ScorerInputs
    features: NDArray[np.float32]
    class_names: list[str]


def read_evidence(data: DataPaths, network: str) -> CaseEvidence:
    """Read the files of all stages that have run.

    Raises:
        InputError: a file is missing or damaged.
    """
    if not data.embedding(network).exists():
        return read_predictions(data, network)
    inputs = load_filter_inputs(data, network)
    return CaseEvidence(
        scorer_inputs=inputs.scorer_inputs,
        features=_features(data, network, len(inputs.scorer_inputs.labels)),
        class_names=inputs.class_names,
    )


def read_predictions(data: DataPaths, network: str) -> CaseEvidence:
    """Read the files of `finetune` and `extract` alone.

    Raises:
        InputError: a file is missing or damaged.
    """
    labels = read_parquet(data.manifest("train"), {"label": pa.int64()})["label"].to_numpy()
    n = len(labels)
    folds = read_parquet(data.predictions(network), {"fold": pa.int32()})["fold"].to_numpy()
    margin, forgetting = read_dynamics(data.training_dynamics(network), n) or (None, None)
    inputs = ScorerInputs(
        labels=labels,
        probabilities=open_array(data.probabilities(network), dtype=np.float32, ndim=2, rows=n),
        training_confidence=_recorded(open_array(data.training_confidence(network), dtype=np.float32, ndim=1, rows=n)),
        training_margin=margin,
        training_forgetting=forgetting,
        folds=folds if folds.any() else None,
    )
    return CaseEvidence(
        scorer_inputs=inputs,
        features=_features(data, network, n),
        class_names=read_json(data.prepare_metrics)["class_names"],
    )


def _features(data: DataPaths, network: str, n: int) -> NDArray[np.float32]:
    return open_array(data.features(network), dtype=np.float32, ndim=2, rows=n)


def _recorded(confidence: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Return None for a head that was fitted, which has no record of training."""
    return None if np.isnan(confidence).all() else confidence
