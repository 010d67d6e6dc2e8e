"""The tables of a study, a function of its runs' results: the train stage writes them, `verify` derives them again."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.training.grid import RunSpec, RunVariant, run_variant
from pipeline.training.result_cache import RunResult
from pipeline.training.runs import HISTORY_SCHEMA, RUNS_SCHEMA, run_row


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
