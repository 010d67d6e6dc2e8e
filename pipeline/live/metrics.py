"""Metrics of the run that trains, as files that DVC's plots, its extension for VS Code and Studio follow.

The layout is DVCLive's: metrics.json, plots/metrics/<group>/<name>.tsv with the columns step and <name>, and
report.html, a page that refreshes itself. No result depends on them.
"""

import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.artifacts.files import write_json, write_text
from pipeline.live.page import LiveState, live_page
from pipeline.training.state import HistoryRecord

_CURVES = {
    ("train", "loss"): "train_loss",
    ("train", "learning_rate"): "lr",
    ("test", "top1"): "top1",
    ("test", "loss"): "test_loss",
}
_TITLES = {
    ("runs", "top1"): "Top-1 of the runs that have ended",
    ("train", "loss"): "Training loss of this run (nats)",
    ("test", "top1"): "Top-1 of this run",
    ("test", "loss"): "Test loss of this run (nats)",
    ("train", "learning_rate"): "Learning rate of this run",
}
"""Headings of the curves on the page, in their order."""


class LiveMetrics:
    """Writes the curves of the current run and the accuracies of the study's runs.

    Args:
        folder: replaced by this study's metrics.
        study: name of the study.
        n_runs: number of runs to train.
    """

    def __init__(self, folder: Path, *, study: str, n_runs: int) -> None:
        self._folder, self._study, self._n_runs = folder, study, n_runs
        self._ended: list[float | None] = []
        self._run = self._left = ""
        self._shown: dict[tuple[str, str], Sequence[tuple[int, float]]] = {}
        shutil.rmtree(folder, ignore_errors=True)

    def start_run(self, name: str) -> None:
        """Remove the curves of the previous run, and show the name of this one."""
        for group, _ in _CURVES:
            shutil.rmtree(self._plots / group, ignore_errors=True)
        for curve in _CURVES:
            self._shown.pop(curve, None)
        self._run = name
        self._write_metrics({})

    def record(self, history: Sequence[HistoryRecord]) -> None:
        """Write the curves of the current run from all its records."""
        metrics: dict[str, dict[str, float]] = {}
        for (group, name), attribute in _CURVES.items():
            points = [(one.step, getattr(one, attribute)) for one in history]
            known = [(step, value) for step, value in points if value is not None]
            if known:
                self._write_curve(group, name, known)
                metrics.setdefault(group, {})[name] = known[-1][1]
        self._write_metrics({"step": history[-1].step, **metrics})

    def end_run(self, top1: float | None, left: str) -> None:
        """Add a run to the curve of the study.

        Args:
            top1: 0 to 1; None if the run has no result.
            left: the runs and the time left of the study, as text.
        """
        self._ended.append(top1)
        self._left = left
        known = [(number, value) for number, value in enumerate(self._ended, start=1) if value is not None]
        if known:
            self._write_curve("runs", "top1", known)
        self._write_metrics({} if top1 is None else {"test": {"top1": top1}})

    @property
    def _plots(self) -> Path:
        return self._folder / "plots" / "metrics"

    def _write_curve(self, group: str, name: str, points: Sequence[tuple[int, float]]) -> None:
        self._shown[group, name] = points
        lines = [f"step\t{name}", *(f"{step}\t{value!r}" for step, value in points)]
        write_text(self._plots / group / f"{name}.tsv", "\n".join(lines) + "\n")

    def _write_metrics(self, of_run: Mapping[str, Any]) -> None:
        whole = {"study": self._study, "run": self._run, "runs_ended": len(self._ended), "runs": self._n_runs}
        write_json(self._folder / "metrics.json", {**whole, "left": self._left, **of_run})
        state = LiveState(
            study=self._study,
            run=self._run,
            ended=len(self._ended),
            runs=self._n_runs,
            left=self._left,
            curves={title: self._shown.get(curve, ()) for curve, title in _TITLES.items()},
            updated=datetime.now(UTC),
        )
        write_text(self._folder / "report.html", live_page(state))
