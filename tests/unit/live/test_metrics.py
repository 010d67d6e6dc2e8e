"""The metrics of a running study in DVCLive's layout."""

import csv
from pathlib import Path

from pipeline.artifacts.files import read_json
from pipeline.live.metrics import LiveMetrics
from pipeline.training.state import HistoryRecord
from tests.fixtures.loop import train_bright
from tests.fixtures.training import TINY


def _record(step: int, loss: float | None, top1: float | None = None) -> HistoryRecord:
    return HistoryRecord(epoch=0.5, step=step, examples=8 * step, train_loss=loss, lr=0.1 / step, top1=top1)


def _curve(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "plots" / "metrics" / f"{name}.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_curves_are_of_the_current_run_and_one_is_of_all_runs(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    live = LiveMetrics(folder, study="digits", n_runs=3)
    live.start_run("full, seed 0")
    history = [_record(1, 2.5), _record(2, None), _record(3, 1.25, top1=0.5)]
    live.record(history[:1])
    assert read_json(folder / "metrics.json")["train"]["loss"] == 2.5
    live.record(history)
    assert _curve(folder, "train/loss") == [{"step": "1", "loss": "2.5"}, {"step": "3", "loss": "1.25"}]
    assert _curve(folder, "test/top1") == [{"step": "3", "top1": "0.5"}]
    live.end_run(0.75, "1 of 3 runs, about 5 min left")
    live.start_run("full, seed 1")
    assert not (folder / "plots/metrics/train").exists()
    live.end_run(None, "2 of 3 runs, about 2 min left")
    live.end_run(0.25, "3 of 3 runs")
    assert _curve(folder, "runs/top1") == [{"step": "1", "top1": "0.75"}, {"step": "3", "top1": "0.25"}]
    metrics = read_json(folder / "metrics.json")
    assert (metrics["study"], metrics["runs_ended"], metrics["runs"], metrics["left"]) == (
        "digits",
        3,
        3,
        "3 of 3 runs",
    )
    assert metrics["test"] == {"top1": 0.25}


def test_metrics_of_an_earlier_study_are_removed(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "old.tsv").touch()
    LiveMetrics(tmp_path / "live", study="digits", n_runs=1).start_run("full, seed 0")
    assert {path.name for path in (tmp_path / "live").iterdir()} == {"metrics.json", "report.html"}


def test_the_page_refreshes_itself_until_the_last_run_has_ended(tmp_path: Path) -> None:
    live = LiveMetrics(tmp_path, study="digits", n_runs=2)
    pages = []

    def read() -> str:
        pages.append((tmp_path / "report.html").read_text(encoding="utf-8"))
        return pages[-1]

    live.start_run("full & <b>, seed 0")
    assert "Run 1 of 2: full &amp; &lt;b&gt;, seed 0" in read()
    live.record([_record(1, 2.5), _record(3, 1.25, top1=0.5)])
    assert "Training loss of this run (nats): 1.25" in read()
    assert "Top-1 of this run: 0.5" in pages[-1]
    live.end_run(0.75, "1 of 2 runs, about 5 min left")
    live.start_run("full, seed 1")
    assert "1 of 2 runs, about 5 min left" in read()
    # The curves of the run before are gone, that of the study stays.
    assert "of this run" not in pages[-1]
    assert "Top-1 of the runs that have ended: 0.75" in pages[-1]
    assert [page.count('http-equiv="refresh"') for page in pages] == [1, 1, 1]
    live.end_run(0.5, "2 of 2 runs")
    assert 'http-equiv="refresh"' not in read()
    # One file, without scripts.
    for page in pages:
        assert not [part for part in ("<script", "src=", "href=") if part in page]


def test_every_record_is_passed_on_and_no_bit_changes() -> None:
    seen: list[list[HistoryRecord]] = []
    watched = train_bright(TINY, on_record=lambda history: seen.append(list(history)))
    assert [len(history) for history in seen] == [1, 2]
    assert seen[-1] == watched.history
    assert watched.links == train_bright(TINY).links
