"""How far an audit is: a line after each run, also after one that fails, and one for a run that is trained twice."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.commands.verify.command import n_images, with_progress
from pipeline.commands.verify.retraining import AuditSample, conclusion
from pipeline.commands.verify.studies import StudyRun
from pipeline.durations import BatchSizes
from pipeline.errors import InputError
from pipeline.run_log import RunLog
from pipeline.runs.ledger import RunResult

_LINKS = [SimpleNamespace(step=step) for step in (2, 4, 10)]
_PROJECT: Any = SimpleNamespace(
    runs={name: SimpleNamespace(result=SimpleNamespace(links=_LINKS)) for name in ("one", "other")}
)


def _run(fingerprint: str, **segment: Any) -> StudyRun:
    spec: Any = SimpleNamespace(settings=SimpleNamespace(batch_sizes=BatchSizes(final=8)))
    return StudyRun(study="tiny", spec=spec, rows=cast("Any", None), fingerprint=fingerprint, **segment)


def _lines(file: Path) -> list[str]:
    """Without their times."""
    return [line.split(" ", 2)[2] for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("segment", "steps"), [({}, 10), ({"n_links": 1}, 2), ({"first_link": 1, "n_links": 3}, 8), ({"first_link": 2}, 6)]
)
def test_the_images_of_a_segment_are_those_of_its_steps(segment: dict[str, int], steps: int) -> None:
    assert n_images(_PROJECT, _run("one", **segment)) == 8 * steps


def test_each_run_has_one_line_whatever_becomes_of_it(tmp_path: Path) -> None:
    result = cast("RunResult", object())

    def retrain(run: StudyRun) -> RunResult:
        if run.fingerprint == "other":
            raise InputError("no such batch")
        return result

    runs = [_run("one"), _run("other")]
    sample = AuditSample(decidable={}, undecidable={}, chosen=runs)
    log = RunLog(tmp_path / "log")
    shown = with_progress(retrain, _PROJECT, sample, log)
    assert shown(runs[0]) is shown(runs[0]) is result
    with pytest.raises(InputError):
        shown(runs[1])
    log.close()
    first, last = _lines(tmp_path / "log")
    assert first.startswith("verify: 1 of 2 runs, about ")
    assert last == "verify: 2 of 2 runs"


@pytest.mark.parametrize(("n_runs", "n_audited"), [(100, 99), (1600, 1584), (12, 4)])
def test_not_all_runs_are_as_recorded_if_some_were_left(n_runs: int, n_audited: int) -> None:
    (first, *_) = conclusion(n_runs, {"equal": n_audited})
    assert not first.startswith("all")
    assert next(conclusion(n_runs, {"equal": n_runs})) == f"all {n_runs} runs are as recorded"
