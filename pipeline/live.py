"""The progress of several runs while they train: the time left, a page, and metrics as files.

DVC's plots and its extension for VS Code follow the files. Their layout is DVCLive's: metrics.json,
plots/metrics/<group>/<name>.tsv with the columns step and <name>, and report.html, a page that refreshes itself. No
result depends on them.
"""

import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from pipeline.artifacts.files import write_json, write_text
from pipeline.errors import InputError
from pipeline.run_log import rounded_time
from pipeline.training.state import HistoryRecord

_REFRESH_S = 5
"""Seconds between two refreshes of the page."""
_WRITE_S = 2.0
"""Seconds between two writes of the curves of a run: a short run has more records than its time allows to flush."""

# Group and name of a curve -> attribute of a record.
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

_WIDTH, _HEIGHT, _MARGIN = 640, 200, 44  # pixels of a curve

_STYLE = """
:root { color-scheme: light dark; --line: light-dark(#1b5e9b, #6cb8ea); --quiet: light-dark(#5c5c5c, #a5a5a0); }
body { max-width: 680px; margin: 0 auto; padding: 12px; font: 15px/1.4 system-ui, sans-serif; }
h1 { margin: 0 0 4px; font-size: 20px; }
h2 { margin: 16px 0 0; font-size: 15px; }
p { margin: 4px 0; overflow-wrap: anywhere; }
progress { width: 100%; height: 12px; accent-color: var(--line); }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--quiet); font-size: 12px; }
svg polyline { fill: none; stroke: var(--line); stroke-width: 2; }
svg circle { fill: var(--line); }
svg path { fill: none; stroke: var(--quiet); }
.quiet { color: var(--quiet); font-size: 13px; }
"""


class StudyProgress:
    """Estimates the time left from the time per image of the runs that have ended.

    Runs of several batch sizes differ in their time per image, so the estimate is rough until most of them have ended.

    Args:
        images: training images that each run processes, in the order of the runs.
        following: stages that come after these runs.
        unit: name of a run in the texts.
        clock: returns seconds.
    """

    def __init__(
        self,
        images: Sequence[int],
        *,
        following: Sequence[str] = (),
        unit: str = "run",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._images, self._following, self._unit, self._clock = images, following, unit, clock
        self._start = clock()
        self._begun = self._ended = 0

    def begin_run(self) -> str:
        """Count a run that begins, and return where it is: "run 3 of 27, about 5 min left, then report"."""
        self._begun += 1
        return self.where

    @property
    def where(self) -> str:
        """Where the run that began last is in the whole. The time left is unknown before the first run has ended."""
        then = f"then {', '.join(self._following)}" if self._following else ""
        return ", ".join(filter(None, [f"{self._unit} {self._begun} of {len(self._images)}", self._left(), then]))

    def end_run(self, earlier_seconds: float = 0.0) -> str:
        """Count a run that has ended, and return the progress, such as "3 of 27 runs, about 5 min left".

        Args:
            earlier_seconds: wall time of earlier processes in this run.
        """
        self._start -= earlier_seconds
        self._ended += 1
        return ", ".join(filter(None, [f"{self._ended} of {len(self._images)} {self._unit}s", self._left()]))

    def _left(self) -> str:
        done, left = sum(self._images[: self._ended]), sum(self._images[self._ended :])
        if not left or not self._ended:
            return ""
        return f"about {rounded_time((self._clock() - self._start) * left / max(1, done))} left"


def following_stages(study: str, studies: Iterable[str]) -> list[str]:
    """Return the stages after a study's in the order of dvc.yaml: the later studies and the report.

    Args:
        studies: of params.yaml, in its order.

    Returns:
        Empty outside of DVC, which runs one stage after another.
    """
    if "DVC_ROOT" not in os.environ:
        return []
    names = list(studies)
    return [*(f"train@{name}" for name in names[names.index(study) + 1 :]), "report"]


class LiveMetrics:
    """Writes the curves of the current run and the accuracies of the study's runs.

    The runs go on without metrics once a file cannot be written, e.g. on a full disk.

    Args:
        folder: replaced by this study's metrics.
        study: name of the study.
        n_runs: number of runs to train.
        log: receives a line if the metrics end early.
        clock: returns seconds.
    """

    def __init__(
        self,
        folder: Path,
        *,
        study: str,
        n_runs: int,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._study, self._n_runs, self._log, self._clock = folder, study, n_runs, log, clock
        self._has_failed = False
        self._ended: list[float | None] = []
        self._run = self._left = ""
        self._shown: dict[tuple[str, str], Sequence[tuple[int, float]]] = {}
        self._unwritten: Sequence[HistoryRecord] = ()
        self._next_write = 0.0
        shutil.rmtree(folder, ignore_errors=True)

    def start_run(self, name: str) -> None:
        """Remove the curves of the previous run, and show the name of this one."""
        if self._has_failed:
            return
        for group, _ in _CURVES:
            shutil.rmtree(self._plots / group, ignore_errors=True)
        for curve in _CURVES:
            self._shown.pop(curve, None)
        self._run, self._unwritten, self._next_write = name, (), 0.0
        with self._may_fail():
            self._write_metrics({})

    def record(self, history: Sequence[HistoryRecord]) -> None:
        """Write the curves of the current run from all its records, unless they were written a moment ago."""
        self._unwritten = history
        if self._clock() >= self._next_write and not self._has_failed:
            with self._may_fail():
                self._write_metrics({"step": history[-1].step, **self._write_curves_of_run()})
            self._next_write = self._clock() + _WRITE_S

    def _write_curves_of_run(self) -> dict[str, dict[str, float]]:
        """Write the curves of the records that are not written, and return the last value of each."""
        history, self._unwritten = self._unwritten, ()
        metrics: dict[str, dict[str, float]] = {}
        for (group, name), attribute in _CURVES.items():
            points = [(one.step, getattr(one, attribute)) for one in history]
            known = [(step, value) for step, value in points if value is not None]
            if known:
                self._write_curve(group, name, known)
                metrics.setdefault(group, {})[name] = known[-1][1]
        return metrics

    def end_run(self, top1: float | None, left: str) -> None:
        """Add a run to the curve of the study, and complete its own curves.

        Args:
            top1: 0 to 1; None if the run has no result.
            left: the runs and the time left of the study, as text.
        """
        if self._has_failed:
            return
        self._ended.append(top1)
        self._left = left
        with self._may_fail():
            self._write_curves_of_run()
            known = [(number, value) for number, value in enumerate(self._ended, start=1) if value is not None]
            if known:
                self._write_curve("runs", "top1", known)
            self._write_metrics({} if top1 is None else {"test": {"top1": top1}})

    @contextmanager
    def _may_fail(self) -> Iterator[None]:
        """Log the first error of the files written in the block; after it nothing is written."""
        try:
            yield
        except (OSError, InputError) as error:
            self._has_failed = True
            reason = error.__cause__ or error  # without the advice to run the command again
            # The log file may be on the same full disk, and the terminal has the line by then.
            with suppress(OSError):
                self._log(f"{self._folder}: no live metrics from now on ({reason}); the runs go on")

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


@dataclass(frozen=True, kw_only=True)
class LiveState:
    """The progress of a study.

    Attributes:
        study: its name.
        run: description of the current run; empty before the first one.
        ended, runs: number of runs that have ended, and of all to train.
        left: the runs and the time left, as text; empty before the first run has ended.
        curves: title -> (step, value) in ascending order, of the current run and of the study.
        updated: time of this state.
    """

    study: str
    run: str
    ended: int
    runs: int
    left: str
    curves: Mapping[str, Sequence[tuple[int, float]]]
    updated: datetime


def live_page(state: LiveState) -> str:
    """Return the page as HTML that needs no other file and no script."""
    running = state.ended < state.runs
    left = state.left or f"{state.ended} of {state.runs} runs"
    lines = [
        f'<meta http-equiv="refresh" content="{_REFRESH_S}">' if running else "",
        f"<title>{escape(state.study)}: {escape(left)}</title>",
        f"<style>{_STYLE}</style>",
        f"<h1>Study {escape(state.study)}</h1>",
        f'<progress value="{state.ended}" max="{state.runs}"></progress>',
        f"<p>{escape(left)}</p>",
        f"<p>Run {state.ended + 1} of {state.runs}: {escape(state.run)}</p>"
        if running
        else "<p>All runs have ended.</p>",
        *(_curve(title, finite) for title, points in state.curves.items() if (finite := _finite(points))),
        f'<p class="quiet">Updated {state.updated:%Y-%m-%d %H:%M:%S} UTC.</p>',
    ]
    head = (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width">'
    )
    return "\n".join([head, *filter(None, lines), "</html>", ""])


def _finite(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    return [(step, value) for step, value in points if math.isfinite(value)]


def _curve(title: str, points: Sequence[tuple[int, float]]) -> str:
    """Return a heading and a curve with its extremes on both axes."""
    (first, _), (last, latest) = points[0], points[-1]
    low, high = min(value for _, value in points), max(value for _, value in points)
    right, bottom = _WIDTH - _MARGIN / 4, _HEIGHT - _MARGIN / 2
    coordinates = [
        (
            _MARGIN + (right - _MARGIN) * (step - first) / max(1, last - first),
            bottom - (bottom - _MARGIN / 4) * ((value - low) / (high - low) if high > low else 0.5),
        )
        for step, value in points
    ]
    x, y = coordinates[-1]
    line = " ".join(f"{left:.1f},{top:.1f}" for left, top in coordinates)
    return (
        f"<h2>{escape(title)}: {latest:.4g}</h2>\n"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'<path d="M{_MARGIN},{_MARGIN / 4} V{bottom} H{right}"/>'
        f'<polyline points="{line}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        f'<text x="{_MARGIN - 4}" y="{_MARGIN / 4 + 8}" text-anchor="end">{high:.3g}</text>'
        f'<text x="{_MARGIN - 4}" y="{bottom}" text-anchor="end">{low:.3g}</text>'
        f'<text x="{_MARGIN}" y="{_HEIGHT - 6}">{first}</text>'
        f'<text x="{right}" y="{_HEIGHT - 6}" text-anchor="end">{last}</text></svg>'
    )
