"""The tables of a study, a function of its runs' results: the train stage writes them, `verify` derives them again."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.batching import worker_slices
from pipeline.runs.grid import RunSpec, RunVariant, run_variant
from pipeline.runs.ledger import RunResult
from pipeline.training.settings import recorded_settings

# Column -> part of the noise scale's estimate.
_CRITICAL_BATCH = {"critical_batch": "critical_batch", "critical_batch_low": "low", "critical_batch_high": "high"}

RUNS_SCHEMA = pa.schema(
    [
        *(
            (name, pa.string())
            for name in ("study", "fingerprint", "status", "reason", "model", "arm", "filter_network")
        ),
        *((name, pa.int64()) for name in ("batch_size", "simulated_workers", "bn_group", "workers")),
        ("trained_on", pa.string()),
        ("micro_batch", pa.int64()),
        *((name, pa.string()) for name in ("reduction", "precision", "optimizer", "schedule")),
        *((name, pa.float64()) for name in ("learning_rate", "peak_learning_rate")),
        ("warmup_steps", pa.int64()),
        ("weight_decay", pa.float64()),
        *((name, pa.int64()) for name in ("seed", "n_train", "n_relabeled", "steps")),
        ("epochs", pa.float64()),
        ("examples", pa.int64()),
        *((name, pa.float64()) for name in ("top1", "balanced_accuracy", "loss")),
        ("skipped_steps", pa.int64()),
        *((name, pa.float64()) for name in _CRITICAL_BATCH),
        ("chain_end", pa.string()),
        ("settings", pa.string()),
    ]
)

HISTORY_SCHEMA = pa.schema(
    [
        ("study", pa.string()),
        ("fingerprint", pa.string()),
        ("epoch", pa.float64()),
        *((name, pa.int64()) for name in ("step", "examples")),
        *((name, pa.float64()) for name in ("train_loss", "lr", "top1", "test_loss")),
    ]
)


@dataclass(frozen=True, kw_only=True)
class StudyTables:
    """The tables of one study.

    Attributes:
        runs: one row per run, see `RUNS_SCHEMA`.
        history: records of the training curves, of each distinct run once.
        correct: (runs, n_test) bool; all false for runs that did not finish.
        accuracies: mean top-1 of each variant, 0 to 1, for `dvc metrics`.
    """

    runs: pa.Table
    history: pa.Table
    correct: NDArray[np.bool_]
    accuracies: Mapping[str, float]


def study_tables(
    study: str, specs: Sequence[RunSpec], keys: Sequence[str], results: Sequence[RunResult | None]
) -> StudyTables:
    """Return the tables of a study.

    Args:
        specs: runs of the study, in the order of its grid.
        keys: the fingerprint of each; empty for skipped runs.
        results: of each; None for skipped runs.
    """
    rows = [run_row(study, spec, key, result) for spec, key, result in zip(specs, keys, results, strict=True)]
    history = [
        {"study": study, "fingerprint": key, **vars(record)}
        for key, result in dict(zip(keys, results, strict=True)).items()
        if result
        for record in result.history
    ]
    n_test = max((len(result.correct) for result in results if result and result.correct is not None), default=0)
    nothing = np.zeros(n_test, dtype=np.bool_)
    correct = [result.correct if result and result.correct is not None else nothing for result in results]
    return StudyTables(
        runs=pa.Table.from_pylist(rows, schema=RUNS_SCHEMA),
        history=pa.Table.from_pylist(history, schema=HISTORY_SCHEMA),
        correct=np.stack(correct),
        accuracies=_accuracies(specs, results),
    )


def run_row(study: str, spec: RunSpec, key: str, result: RunResult | None) -> dict[str, object]:
    """Return a run's row of data/train/<study>.parquet; `result` is None for a skipped run."""
    settings = spec.settings
    # A run that diverged stopped early.
    steps = result.history[-1].step if result else 0
    examples = settings.batch_sizes.examples(steps)
    noise = (result.critical_batch if result else None) or {}
    return {
        "study": study,
        "fingerprint": key,
        "status": result.status if result else "skipped",
        "reason": spec.skip_reason
        or ("the loss stopped being finite" if result and result.status == "diverged" else ""),
        "model": settings.network,
        "arm": spec.arm,
        "filter_network": spec.filter_network,
        "batch_size": settings.batch_size,
        "simulated_workers": settings.simulated_workers,
        "bn_group": worker_slices(settings.batch_size, settings.simulated_workers, settings.bn_group)[0].group_sizes[0],
        "workers": result.workers if result else None,
        "trained_on": "; ".join(result.hardware) if result else None,
        "micro_batch": result.micro_batch if result else None,
        "reduction": settings.reduction,
        "precision": settings.precision,
        "optimizer": settings.optimizer,
        "schedule": settings.schedule,
        "learning_rate": spec.learning_rate,
        "peak_learning_rate": settings.learning_rate,
        "warmup_steps": settings.warmup_steps,
        "weight_decay": settings.weight_decay,
        "seed": settings.seed,
        "n_train": spec.n_train,
        "n_relabeled": spec.n_relabeled,
        "steps": steps if result else None,
        "epochs": examples / spec.n_train if result else None,
        "examples": examples if result else None,
        "top1": result.top1 if result else None,
        "balanced_accuracy": result.balanced_accuracy if result else None,
        "loss": result.loss if result else None,
        "skipped_steps": result.skipped_steps if result else None,
        **{name: noise.get(key) for name, key in _CRITICAL_BATCH.items()},
        "chain_end": result.links[-1].sha256 if result and result.links else None,
        "settings": json.dumps(recorded_settings(settings), sort_keys=True),
    }


def scores_by_variant(specs: Sequence[RunSpec], results: Sequence[RunResult | None]) -> dict[RunVariant, list[float]]:
    """Return the top-1 accuracies of each variant's finished seeds."""
    scores: dict[RunVariant, list[float]] = defaultdict(list)
    for spec, result in zip(specs, results, strict=True):
        if result and result.top1 is not None:
            scores[run_variant(spec)].append(result.top1)
    return scores


def _accuracies(specs: Sequence[RunSpec], results: Sequence[RunResult | None]) -> dict[str, float]:
    return {
        f"{model} {_arm(arm, network, specs)} batch {batch} lr {rate:g} wd {decay:g}": float(np.mean(values))
        for (model, arm, network, batch, rate, decay), values in scores_by_variant(specs, results).items()
    }


def _arm(arm: str, network: str, specs: Sequence[RunSpec]) -> str:
    """Return the arm, with the filter's network unless that is the study's first."""
    return arm if network == specs[0].filter_network else f"{arm} of {network}"
