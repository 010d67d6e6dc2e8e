"""Read and check the report's inputs: networks, filters, studies, their plans, and provenance."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array
from pipeline.artifacts.metrics import FilterKeys, FinetuneKeys, OptionalKeys, PrepareKeys, ReduceKeys, read_metrics
from pipeline.artifacts.plans import RegisteredPlan, read_registered_plans, read_run_dates
from pipeline.artifacts.prepared import PreparedData, load_prepared, read_true_labels
from pipeline.artifacts.provenance import file_digest, read_provenance
from pipeline.artifacts.runs import read_run_records, read_runs
from pipeline.artifacts.tables import read_parquet
from pipeline.config.params import Params
from pipeline.config.renamed_keys import with_new_keys
from pipeline.config.study import Study
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths
from pipeline.replication import RunRecord
from pipeline.stats.comparisons import AnalysisPlan, seeds_used
from pipeline.stats.replicates import TREATED
from pipeline.stats.runs import Run, run_from_row

_POINT_COLUMNS = (
    "path", "label", "suggested_label", "suggested_probability", "x", "y", "is_noise", "eps", "score", "reason", "keep",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NetworkInputs:
    """One extractor and its filter; arrays have a row for each training image.

    Attributes:
        xy: (N, 2) embedding of the training images.
        labels, suggested: (N,) indices into the class names; a suggested label may be the label.
        suggested_probability: (N,) of the suggested label, 0 to 1.
        threshold: (N,) of each image's class, in the scorer's unit.
        score: (N,) 0 to 1, higher is more suspect.
        test_xy: (N_test, 2) embedding of the test images.
        finetune, reduce, filter: the stages' metrics.
        duplicates: the pairs of near duplicates; None if they were not searched for.
    """

    name: str
    xy: NDArray[np.float32]
    labels: NDArray[np.int64]
    suggested: NDArray[np.int64]
    suggested_probability: NDArray[np.float32]
    is_noise: NDArray[np.bool_]
    keep: NDArray[np.bool_]
    threshold: NDArray[np.float64]
    score: NDArray[np.float64]
    reason: list[str]
    path: list[str]
    test_xy: NDArray[np.float32]
    finetune: Mapping[str, Any]
    reduce: Mapping[str, Any]
    filter: Mapping[str, Any]
    duplicates: pa.Table | None = None


@dataclass(frozen=True, kw_only=True)
class StudyInputs:
    """One study: its configuration, the plan of its analysis, and its runs.

    Attributes:
        correct: (runs, test images), which images each of `runs` classified correctly.
        records: the finished runs that its verdicts use. The paper's claims are tested on those of all studies.
    """

    name: str
    study: Study
    plan: AnalysisPlan
    runs: list[Run]
    correct: NDArray[np.bool_]
    records: list[RunRecord]

    @property
    def seeds_used(self) -> list[int]:
        """The seeds that its verdicts use: with looks, no later ones."""
        return seeds_used(self.runs, self.plan)


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """All inputs of the report.

    Attributes:
        prepare: the metrics of `prepare`.
        true_labels: (N,) int64 of the training images if wrong labels were planted, else None.
        versions: package -> version -> the stages that ran with it.
        digests: file -> SHA-256, for the files that determine the results.
    """

    params: Params
    data: PreparedData
    prepare: Mapping[str, Any]
    true_labels: NDArray[np.int64] | None
    networks: list[NetworkInputs]
    studies: list[StudyInputs]
    versions: Mapping[str, Mapping[str, list[str]]]
    digests: Mapping[str, str]


def load_report_inputs(params: Params, paths: DataPaths) -> ReportInputs:
    """Read the artifacts of every network and study in `params`; those of others are ignored.

    Raises:
        InputError: a file is missing, damaged, or does not fit the others.
    """
    data = load_prepared(paths, folder=params.prepare.folder)
    digests = [paths.manifest("train"), paths.manifest("test"), *(paths.kept(name) for name in params.networks)]
    return ReportInputs(
        params=params,
        data=data,
        prepare=read_metrics(paths.prepare_metrics, PrepareKeys),
        true_labels=read_true_labels(paths),
        networks=[_load_network(name, data, paths) for name in params.networks],
        studies=[_load_study(name, params, paths, n_test=len(data.test.labels)) for name in params.studies],
        versions=_versions(params, paths),
        digests={path.relative_to(paths.root).as_posix(): file_digest(path) for path in digests},
    )


def result_files(params: Params, paths: DataPaths) -> list[Path]:
    """Return the files that the report's numbers come from, without the data set."""
    files = []
    for name in params.networks:
        files += [paths.finetune_metrics(name), paths.embedding(name, "test"), paths.reduce_metrics(name)]
        files += [paths.points(name), paths.filter_metrics(name)]
        if read_metrics(paths.filter_metrics(name), OptionalKeys).get("near_duplicates"):
            files.append(paths.near_duplicates(name))
    for name in params.studies:
        files += [paths.runs(name), paths.history(name), paths.correct(name)]
    return files


def report_input_files(params: Params, paths: DataPaths) -> list[Path]:
    """Return the files that the report reads and `prepare` does not write; only measured landscapes."""
    landscapes = [
        path
        for name in params.studies
        for path in (paths.landscape(name), paths.landscape_figure(name), paths.provenance("landscape", name))
    ]
    stages = [name.partition("@") for name in stage_names(params) if name != "prepare"]
    return [
        *result_files(params, paths),
        *(paths.kept(name) for name in params.networks),
        *(path for path in (*landscapes, paths.archive_record) if path.exists()),
        *(paths.provenance(stage, item) for stage, _, item in stages),
    ]


def stage_names(params: Params) -> list[str]:
    """Return all stages before the report as DVC names them, in the order of the pipeline."""
    items: list[tuple[str, str | None]] = [("prepare", None)]
    items += [(stage, name) for stage in ("finetune", "extract", "reduce", "filter") for name in params.networks]
    items += [("train", name) for name in params.studies]
    return [f"{stage}@{item}" if item else stage for stage, item in items]


def _with_current_settings(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of the filter with current keys; files of earlier versions may have old ones."""
    settings = metrics.get("settings")
    return {**metrics, "settings": with_new_keys({"filter": settings})["filter"] if settings else settings}


def _load_network(name: str, data: PreparedData, paths: DataPaths) -> NetworkInputs:
    points = read_parquet(paths.points(name), _POINT_COLUMNS)
    test = read_parquet(paths.embedding(name, "test"), ("x", "y"))
    filtering = read_metrics(paths.filter_metrics(name), FilterKeys, translate=_with_current_settings)
    for path, rows, images in (
        (paths.points(name), len(points), len(data.train.labels)),
        (paths.embedding(name, "test"), len(test), len(data.test.labels)),
    ):
        if rows != images:
            raise InputError(f"{path}: has {rows} rows for {images} images; run `dvc repro`")
    return NetworkInputs(
        name=name,
        xy=np.column_stack([points["x"].to_numpy(), points["y"].to_numpy()]),
        test_xy=np.column_stack([test["x"].to_numpy(), test["y"].to_numpy()]),
        reason=points["reason"].to_pylist(),
        path=points["path"].to_pylist(),
        finetune=read_metrics(paths.finetune_metrics(name), FinetuneKeys),
        reduce=read_metrics(paths.reduce_metrics(name), ReduceKeys),
        filter=filtering,
        # Earlier versions did not search.
        duplicates=read_parquet(paths.near_duplicates(name)) if filtering.get("near_duplicates") else None,
        labels=points["label"].to_numpy(),
        suggested=points["suggested_label"].to_numpy(),
        suggested_probability=points["suggested_probability"].to_numpy(),
        threshold=points["eps"].to_numpy(),
        score=points["score"].to_numpy(),
        is_noise=points["is_noise"].to_numpy(zero_copy_only=False),
        keep=points["keep"].to_numpy(zero_copy_only=False),
    )


def _load_study(name: str, params: Params, paths: DataPaths, *, n_test: int) -> StudyInputs:
    study, report = params.studies[name], params.report
    plan = AnalysisPlan(
        margin=report.margin / 100, alpha=report.alpha, primary=report.primary, matched=study.match, n_images=n_test,
        looks=study.looks or (), equivalent_sizes=study.equivalent_sizes(params.train),
    )  # fmt: skip
    runs = [run_from_row(row) for row in read_runs(paths.runs(name), paths.history(name))]
    seeds = set(seeds_used(runs, plan))
    return StudyInputs(
        name=name,
        study=study,
        plan=plan,
        runs=runs,
        correct=_load_correct(paths, name, runs, n_test),
        records=[
            RunRecord(**row, matched=study.match, n_images=n_test)
            for row in read_run_records(paths.runs(name), params.prepare.storage, seeds)
            # The claims are on grids, to which the runs of `equivalent_batch` do not belong.
            if row["arm"] != TREATED or row["batch_size"] in study.batch_sizes
        ],
    )


def _load_correct(paths: DataPaths, name: str, runs: list[Run], n_test: int) -> NDArray[np.bool_]:
    """Return correctness (runs, n_test); all false for runs that did not finish."""
    path = paths.correct(name)
    correct = open_array(path, dtype=np.bool_, ndim=2, rows=len(runs))
    if not any(run.finished for run in runs):
        return np.zeros((len(runs), n_test), dtype=np.bool_)
    if correct.shape[1] != n_test:
        raise InputError(f"{path}: has {correct.shape[1]} test images instead of {n_test}; run `dvc repro`")
    for run, share in zip(runs, correct.mean(axis=1), strict=True):
        if run.top1 is not None and abs(run.top1 - share) > 0.5 / n_test:
            raise InputError(f"{path}: contradicts {paths.runs(name)}; run `dvc repro --force`")
    return correct


def _versions(params: Params, paths: DataPaths) -> dict[str, dict[str, list[str]]]:
    versions: dict[str, dict[str, list[str]]] = {}
    for name in stage_names(params):
        stage, _, item = name.partition("@")
        for package, version in read_provenance(paths.provenance(stage, item or None))["versions"].items():
            versions.setdefault(package, {}).setdefault(version, []).append(name)
    return {package: versions[package] for package in sorted(versions)}


@dataclass(frozen=True, kw_only=True)
class PlanHistory:
    """The recorded plans and runs of one study.

    Attributes:
        statements: the oldest first; empty if no plan was stated.
        run_dates: fingerprint -> when the run was recorded, UTC; None for runs of a version without plans.
    """

    statements: list[RegisteredPlan]
    run_dates: Mapping[str, str | None]

    def recorded_before(self, date: str) -> int:
        """Return the number of runs older than `date`, or of a version without plans."""
        return sum(recorded is None or recorded < date for recorded in self.run_dates.values())


PlanHistories = Mapping[str, PlanHistory]
"""Study -> its plans; studies without a `plan` section are missing."""


def load_plans(params: Params, work: WorkPaths) -> PlanHistories:
    """Return the plans of studies with a `plan` section. Reports without such studies have no date: all clones agree.

    Raises:
        InputError: a statement is damaged.
    """
    return {
        name: PlanHistory(
            statements=read_registered_plans(work.plans(name)), run_dates=read_run_dates(work.plans(name))
        )
        for name, study in params.studies.items()
        if study.plan
    }
