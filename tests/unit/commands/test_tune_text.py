"""Golden text of `tune`: its output, its leaderboard, and the text of its page."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.files import write_json
from pipeline.artifacts.tables import write_csv
from pipeline.commands.tune.outputs import write_comparison
from pipeline.commands.tune.report import context_switch_text, late_bloomers_text, leaderboard_lines, page
from pipeline.commands.tune.run import outcome_lines
from pipeline.config.tuning import Tuning
from pipeline.paths import DataPaths, WorkPaths
from pipeline.tuning.results import SearchResult
from pipeline.tuning.scheduler import SearchOutcome
from tests.fixtures.golden import check_golden

_TUNING = Tuning.model_validate(
    {
        "study": "tiny",
        "space": {
            "learning_rates": {"log_uniform": [0.01, 1.0]},
            "recipe.optimizer": {"choices": [{"name": "sgd", "momentum": 0.9}, {"name": "adamw"}]},
        },
        "sampler": {"name": "random"},
        "trials": 5,
        "epochs": 4,
        "pruner": {"name": "threshold", "amount": 0.1, "kind": "absolute"},
        "resume_pruned": 2,
    },
    strict=False,
)


def _found(**changes: Any) -> SearchResult:
    """Trial 1 wins after three epochs; 0 overtakes it later, 2 fails then, 3 fails in the search, 4 is finished."""
    optimizers: list[dict[str, Any]] = [{"name": "sgd", "momentum": 0.9}, {"name": "adamw"}]
    rates = [0.02, 0.1, 0.05, 0.9, 0.4]
    search: dict[str, Any] = {
        "tuning": _TUNING,
        "outcome": SearchOutcome(
            winner=1,
            epochs=(1, 3, 2, 0, 3),
            eliminated_after=(1, None, 2, None, None),
            failed=(False, False, False, True, False),
        ),
        "values": [{"learning_rates": rate, "recipe.optimizer": optimizers[row % 2]} for row, rate in enumerate(rates)],
        "accuracies": [[0.25], [0.5, 0.625, 0.75], [0.375, 0.5], [], [0.4375, 0.5625, 0.6875]],
        "reasons": ["", "", "", "the loss stopped being finite", ""],
        "finished": {0: [0.25, 0.5, 0.75, 0.875], 1: [0.5, 0.625, 0.75, 0.8125]},
        "failed_afterwards": {2: "the loss stopped being finite"},
        "epochs_afterwards": 5,
        "epoch_times": [(2.0, 0.5), (2.0, 0.25), (4.0, 0.5)],
        "n_val": 40,
        "images": "the same",
        "journal": WorkPaths().search("lr", "0f1e2d") / "journal.log",
    }
    return SearchResult(**{**search, **changes})


class _Words(HTMLParser):
    """A page's text, one line for each element that has any, without scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self._hidden = False
        self.lines: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._hidden = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        if not self._hidden and data.strip():
            self.lines.append(" ".join(data.split()))


def test_the_printed_leaderboard_has_the_first_five_trials() -> None:
    result = _found()
    n = 7
    outcome = SearchOutcome(winner=1, epochs=(4,) * n, eliminated_after=(None,) * n, failed=(False,) * n)
    many = _found(
        outcome=outcome, values=[*result.values, *result.values[:2]], accuracies=[[0.1 * trial] for trial in range(n)],
        reasons=[""] * n,
    )  # fmt: skip
    heading, *lines = leaderboard_lines(many)
    assert heading.split() == ["rank", "trial", "status", "accuracy", "epochs", *_TUNING.space]
    assert [line.split()[:2] for line in lines] == [["1", "1"], ["2", "6"], ["3", "5"], ["4", "4"], ["5", "3"]]
    assert [line.split()[3] for line in lines] == ["0.1000", "0.6000", "0.5000", "0.4000", "0.3000"]


def test_tune_prints_outcome_leaderboard_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = DataPaths()
    write_json(data.prepare_metrics, {"n_planted": 7})
    result = _found()
    winner_failed = _found(
        finished={0: [0.25, 0.5, 0.75, 0.875]}, failed_afterwards={1: "the loss stopped being finite"}
    )
    not_trained_on = _found(finished={}, failed_afterwards={}, epochs_afterwards=0)
    outcome = SearchOutcome(winner=1, epochs=(4, 4), eliminated_after=(None, None), failed=(False, False))
    none_pruned = _found(
        outcome=outcome, values=result.values[:2], accuracies=[[0.25] * 4, [0.5] * 4], reasons=["", ""], finished={},
        failed_afterwards={}, epochs_afterwards=0,
    )  # fmt: skip
    write_csv(data.leaderboard("lr"), result.leaderboard())
    data.tuning_figure("lr", "curves").touch()
    searches = {"lr": result, "adam": winner_failed}
    parts = {
        "printed": outcome_lines(result, "lr", data),
        "leaderboard.csv": data.leaderboard("lr").read_text().splitlines(),
        "page": _Words(page(result, "lr", "labels changed on purpose: 7")).lines,
        "no pruned trial trained to the end": [late_bloomers_text(not_trained_on.summary())],
        "no trial pruned": [late_bloomers_text(none_pruned.summary())],
        "winner failed": [late_bloomers_text(winner_failed.summary()), context_switch_text(winner_failed.summary())],
        "two searches": list(write_comparison(searches, data)),
    }
    check_golden("tune.txt", "\n".join(line for title, lines in parts.items() for line in (f"# {title}", *lines, "")))
