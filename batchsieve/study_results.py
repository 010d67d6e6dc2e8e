"""The results of a study: its runs, verdicts and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array, read_json
from pipeline.artifacts.recorded import StageFiles, check_with_note
from pipeline.artifacts.runs import read_runs
from pipeline.artifacts.stage_inputs import study_tables
from pipeline.artifacts.tables import read_parquet
from pipeline.config.params import Params
from pipeline.paths import DataPaths
from pipeline.stats.comparisons import AnalysisPlan, comparisons
from pipeline.stats.estimates import Estimate
from pipeline.stats.formatting import points, points_interval
from pipeline.stats.per_class import image_values
from pipeline.stats.runs import CurveAxis, Run, run_from_row
from pipeline.stats.study import study_summary
from pipeline.stats.tables import Table, accuracy_table, critical_batch_table, difference_table

if TYPE_CHECKING:
    import pandas as pd

_WORST = "worst class"


@dataclass(frozen=True, kw_only=True)
class StudyVerdict:
    """A comparison of the filtered arm with another one, over all settings of a study.

    Attributes:
        control: the other arm.
        is_primary: whether it is the comparison that the plan names.
        outcome: helps, hurts, equivalent or undecided; None if nothing was compared.
        effect: the difference in top-1 with its interval, in percentage points, as text; None if nothing was compared.
        sentence: the verdict in words.
        notes: what restricts it: seeds that are missing, settings that were left out.
    """

    control: str
    is_primary: bool
    outcome: str | None
    effect: str | None
    sentence: str
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class StudyResults:
    """The runs of a study, and their analysis by the stated plan.

    Attributes:
        name: in params.yaml.
        runs: all runs, finished or not.
        plan: the stated analysis: margin, level and primary comparison.
        confidence: of the intervals, 0 to 1.
        correct: (runs, test images) whether a run classifies an image correctly.
        test_labels: (test images,) int64, indices into `class_names`.
        class_names: of all classes.
        x_axis: of the curves during training.
    """

    name: str
    runs: Sequence[Run]
    plan: AnalysisPlan
    confidence: float
    correct: NDArray[np.bool_]
    test_labels: NDArray[np.int64]
    class_names: Sequence[str]
    x_axis: CurveAxis

    def __repr__(self) -> str:
        return f"StudyResults({self.name}: {len(self.finished):,} of {len(self.runs):,} runs finished)"

    @property
    def finished(self) -> list[Run]:
        """The runs that finished; each has `arm`, `seed`, `setting`, `steps` and `top1`, 0 to 1."""
        return [run for run in self.runs if run.finished]

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """All numbers of the study, as in the report's summary.json."""
        return study_summary(self.name, self.runs, self.plan, x_axis=self.x_axis)

    def verdicts(self) -> list[StudyVerdict]:
        """Return the comparisons over all settings of the study."""
        return [_verdict(row) for row in self.summary["pooled"]]

    def accuracy_table(self) -> "pd.DataFrame":
        """Return top-1 of each arm at each setting, as text with units in the heads."""
        return _frame(accuracy_table(self.summary, self.confidence))

    def difference_table(self) -> "pd.DataFrame":
        """Return the differences at each setting, with verdicts that are adjusted for their number, as text."""
        return _frame(difference_table(self.summary, self.confidence))

    def critical_batch_table(self) -> "pd.DataFrame":
        """Return the measured critical batch sizes as text; no row unless `train.noise_scale_steps` is set."""
        return _frame(critical_batch_table(self.summary))

    def class_table(self) -> "pd.DataFrame":
        """Return the differences of each class and of the worst one, with intervals, in percentage points as text."""
        import pandas as pd

        columns = {
            f"filtered − {control} (points)": [f"{points(row.mean)} ({points_interval(row)})" for row in rows]
            for control, rows in self.class_differences.items()
        }
        return pd.DataFrame({"class": self.class_rows, **columns})

    @property
    def class_rows(self) -> list[str]:
        """Names of the classes with test images, and of the row of the worst class, as in `class_differences`."""
        return [*(self.class_names[label] for label in np.unique(self.test_labels)), _WORST]

    @cached_property
    def class_differences(self) -> Mapping[str, Sequence[Estimate]]:
        """Control -> the difference for each of `class_rows`, in percentage points, over the settings of the verdict.

        Controls without a verdict are missing.
        """
        found = {}
        for comparison in comparisons(self.runs, self.plan):
            values = image_values(comparison, self.correct, self.test_labels, self.class_names, self.confidence)
            if values is not None:
                rows = [*values["classes"], values["worst"]]
                found[comparison.control] = [Estimate(**row["estimate"]) for row in rows]
        return found


def read_study(name: str, params: Params, data: DataPaths) -> StudyResults:
    """Read the results of a study.

    Raises:
        InputError: a file is missing, damaged, not what its stage wrote, or does not fit the others.
    """
    prepared = StageFiles(stage="prepare", files=(data.manifest("test"), data.prepare_metrics))
    check_with_note(data, [prepared, study_tables(name, data)])
    study, report = params.studies[name], params.report
    runs = [run_from_row(row) for row in read_runs(data.runs(name), data.history(name))]
    labels = read_parquet(data.manifest("test"), ["label"])["label"].to_numpy()
    plan = AnalysisPlan(
        margin=report.margin / 100,
        alpha=report.alpha,
        primary=report.primary,
        matched=study.match,
        n_images=len(labels),
        looks=study.looks or (),
        equivalent_sizes=study.equivalent_sizes(params.train),
    )
    return StudyResults(
        name=name,
        runs=runs,
        plan=plan,
        confidence=report.confidence,
        correct=open_array(data.correct(name), dtype=np.bool_, ndim=2, rows=len(runs)),
        test_labels=labels,
        class_names=read_json(data.prepare_metrics)["class_names"],
        x_axis=study.x_axis,
    )


def _verdict(row: Mapping[str, Any]) -> StudyVerdict:
    effect = None
    if row["verdict"]:
        estimate = Estimate(**row["estimate"])
        effect = f"{points(estimate.mean)} ({points_interval(estimate)})"
    return StudyVerdict(
        control=row["control"],
        is_primary=row["primary"],
        outcome=row["verdict"]["outcome"] if row["verdict"] else None,
        effect=effect,
        sentence=row["sentence"],
        notes=tuple(filter(None, (row["needed_sentence"], row["settings_note"]))),
    )


def _frame(table: Table) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame({head: [row[index] for row in table.rows] for index, head in enumerate(table.columns)})
