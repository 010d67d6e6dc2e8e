"""`python -m pipeline tune` on a tiny study: results, files and messages, for every scheduler."""

import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import numpy as np
import pytest
from optuna import create_study, load_study
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from pipeline.__main__ import main
from pipeline.artifacts.files import read_json, write_array, write_json
from pipeline.commands.tune.report import importances, key_axis
from pipeline.commands.tune.run import SearchInputs, counted, read_inputs
from pipeline.config.params import load_params
from pipeline.config.tuning import Domain
from pipeline.paths import TUNING_FIGURES, DataPaths
from pipeline.tuning.scheduler import SearchOutcome
from pipeline.tuning.search import Search
from pipeline.tuning.worker import EpochResult
from tests.fixtures.dask_cluster import running_scheduler
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import NETWORK
from tests.fixtures.training import bright_images
from tests.fixtures.tuning import NAME, leaderboard_of, results_of, tune, write_search


def searched(folder: Path, **changes: Any) -> DataPaths:
    data = write_search(folder, **changes)
    assert tune(folder) == 0
    return data


@pytest.fixture(scope="module")
def round_robin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("round_robin")
    searched(folder, resume_pruned=2)
    return folder


@pytest.mark.slow
def test_what_a_search_leaves(round_robin: Path) -> None:
    data = DataPaths(root=round_robin / "data")
    rows, summary = leaderboard_of(data), read_json(data.tuning_summary(NAME))
    assert [row["rank"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[0]["status"] == "winner"
    assert rows[0]["accuracy"] == max(row["accuracy"] for row in rows)
    assert sum(row["epochs"] for row in rows) == summary["epochs"] == 20 - summary["epochs_saved"]
    pruned = [row for row in rows if row["status"] == "eliminated"]
    assert len(pruned) == summary["eliminated"] > 0
    assert all(row["eliminated_after"] == row["epochs"] for row in pruned)
    assert len(summary["finished_afterwards"]) == 2
    page = data.tuning_page(NAME).read_text()
    assert page.count("Plotly.newPlot") == 3
    assert "<script src" not in page


@pytest.mark.slow
def test_the_figures_of_a_search_are_files_for_papers_too(round_robin: Path) -> None:
    data = DataPaths(root=round_robin / "data")
    rows = leaderboard_of(data)
    curves = data.tuning_figure(NAME, "curves").read_text()
    sampled = Counter(re.findall(r'<g id="trial-\d+(.*)">', curves))
    assert sampled == {
        "": len(rows),
        "-pruned": sum(row["status"] == "eliminated" for row in rows),
        "-afterwards": 2,
    }
    written = read_json(data.tuning_provenance(NAME))["outputs"]
    for figure in TUNING_FIGURES:
        path = data.tuning_figure(NAME, figure)
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
        assert path.name in written


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 6, 8])
def test_trials_of_one_value_have_no_figure_of_the_keys(tmp_path: Path, seed: int) -> None:
    """Three simulated workers do not divide the batch: those trials fail, and all others have the same value."""
    data = write_search(
        tmp_path, space={"recipe.simulated_workers": {"choices": [1, 3]}}, pruner={"name": "hyperband", "factor": 2},
        trials=None, max_concurrent_trials=None, seed=seed,
    )  # fmt: skip
    assert tune(tmp_path) == 0
    assert data.tuned(NAME).exists()
    assert {figure for figure in TUNING_FIGURES if data.tuning_figure(NAME, figure).exists()} == {"curves"}


def test_with_equal_trials_no_figure_of_the_keys_stays(tmp_path: Path) -> None:
    data = write_search(tmp_path, trials=1, epochs=1, max_concurrent_trials=None)
    stale = data.tuning_figure(NAME, "importance")
    stale.parent.mkdir(parents=True)
    stale.write_text("of an earlier search")
    assert tune(tmp_path) == 0
    assert [figure for figure in TUNING_FIGURES if data.tuning_figure(NAME, figure).exists()] == ["curves"]


@pytest.mark.slow
def test_page_figure_and_print_state_the_number_of_planted_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_search(tmp_path, trials=1, epochs=1, max_concurrent_trials=None)
    write_json(data.prepare_metrics, {**read_json(data.prepare_metrics), "n_planted": 7})
    assert tune(tmp_path) == 0
    note = "abels changed on purpose: 7"
    texts = [data.tuning_page(NAME).read_text(), data.tuning_figure(NAME, "curves").read_text()]
    assert [text.count(note) for text in [*texts, capsys.readouterr().out]] == [1, 1, 1]
    assert all(b"labels_changed_on_purpose" in results_of(data)[name] for name in ("leaderboard.csv", "curves.csv"))


def test_a_value_lies_on_its_keys_axis_where_its_ticks_say() -> None:
    """The middle of a logarithmic range is a power of ten; a choice lies on its own tick."""
    space: dict[str, Any] = {
        "learning_rates": {"log_uniform": [1e-3, 0.1]},
        "batch_sizes": {"int_uniform": [16, 24]},
        "recipe.label_smoothing": {"uniform": [0, 0.2]},
        "recipe.optimizer": {"choices": [{"name": "lamb"}, {"name": "sgd"}]},
        "models": {"choices": ["resnet18"]},
    }
    values = (0.01, 20, 0.05, {"name": "sgd"}, "resnet18")
    axes = [
        key_axis(key, Domain.model_validate(domain, strict=False), [value])
        for (key, domain), value in zip(space.items(), values, strict=True)
    ]
    assert [axis.ticks[round(axis.positions[0], 9)] for axis in axes] == [
        "0.01", "20", "0.05", '{"name": "sgd"}', '"resnet18"',
    ]  # fmt: skip
    assert [(min(axis.ticks), max(axis.ticks)) for axis in axes] == [(0, 1)] * 4 + [(0.5, 0.5)]


def test_each_epoch_counts_once_when_it_ends() -> None:
    """One whose worker died is trained again, and counts then."""
    ended: list[int] = []

    class Counting:
        def update(self, n: int = 1, note: str = "") -> None:
            ended.append(n)

    results = [
        EpochResult(accuracy=0.5, seconds=1.0),
        EpochResult(accuracy=None, reason="died", seconds=0.0, killed=True),
        EpochResult(accuracy=None, reason="diverged", seconds=0.0),
    ]
    tasks: Any = range(3)
    mapped = counted(map, Counting())(lambda task: results[cast("int", task)], tasks)
    assert list(mapped) == results
    assert sum(ended) == 2


@pytest.mark.slow
def test_optuna_alone_reads_the_journal(round_robin: Path) -> None:
    """As optuna-dashboard does: the trials with their states, values and curves."""
    (journal,) = (round_robin / "work" / "tune" / NAME).glob("*/journal.log")
    study = load_study(study_name="search", storage=JournalStorage(JournalFileBackend(str(journal))))
    rows = leaderboard_of(DataPaths(root=round_robin / "data"))
    assert len(study.trials) == len(rows)
    assert study.best_value == rows[0]["accuracy"]
    assert study.best_params["learning_rates"] == rows[0]["learning_rates"]
    assert {len(trial.intermediate_values) for trial in study.get_trials(states=[TrialState.COMPLETE])} == {4}


@pytest.mark.slow
def test_the_winner_is_a_parameter_file(round_robin: Path) -> None:
    data = DataPaths(root=round_robin / "data")
    best, before = leaderboard_of(data)[0], load_params(round_robin / "params.yaml")
    tuned = load_params(data.tuned(NAME))
    study = tuned.studies["tiny"]
    assert study.learning_rates == (best["learning_rates"],)
    assert study.effective_recipe(tuned.train).optimizer.model_dump()["momentum"] == best["recipe.optimizer.momentum"]
    assert study.model_copy(
        update={"recipe": {}, "learning_rates": before.studies["tiny"].learning_rates}
    ) == before.studies["tiny"]  # fmt: skip


@pytest.mark.slow
def test_a_search_that_has_ended_trains_nothing_again(round_robin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = DataPaths(root=round_robin / "data")
    before, measured = results_of(data), read_json(data.tuning_summary(NAME))["context_switch"]
    data.leaderboard(NAME).unlink()
    assert tune(round_robin) == 0
    assert results_of(data) == before
    # By the process before this one.
    assert read_json(data.tuning_summary(NAME))["context_switch"] == measured
    assert 0 < measured["median_share"] < 1
    (journal,) = (round_robin / "work" / "tune" / NAME).glob("*/journal.log")
    assert capsys.readouterr().out.endswith(f": cp {journal} copy.log && optuna-dashboard copy.log\n")


@pytest.mark.slow
def test_workers_in_another_folder_come_to_the_same_bytes(
    round_robin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the paths of the command are relative, as they are by default."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with running_scheduler(workers=2, folder=elsewhere, forked=True) as address:
        write_search(project, resume_pruned=2, scheduler="parallel", dask={"scheduler": address})
        monkeypatch.chdir(project)
        assert main(["tune", NAME]) == 0
    assert not list(elsewhere.iterdir())
    assert results_of(DataPaths()) == results_of(DataPaths(root=round_robin / "data"))


def test_the_test_images_decide_nothing(round_robin: Path, tmp_path: Path) -> None:
    data = write_search(tmp_path, resume_pruned=2)
    write_array(data.images("test"), bright_images(22, seed=9)[0][::-1].copy())
    assert tune(tmp_path) == 0
    assert results_of(data) == results_of(DataPaths(root=round_robin / "data"))


def test_failed_trials_are_recorded_and_the_search_goes_on(tmp_path: Path) -> None:
    data = searched(
        tmp_path,
        space={"learning_rates": {"choices": [0.1, 1e30]}, "recipe.simulated_workers": {"choices": [1, 3]}},
        sampler={"name": "grid"},
        trials=None,
        max_concurrent_trials=None,
        pruner={"name": "none"},
        epochs=2,
    )
    rows = {(row["learning_rates"], row["recipe.simulated_workers"]): row for row in leaderboard_of(data)}
    assert rows[0.1, 1]["status"] == "winner"
    assert all(row["reason"] for row in rows.values() if row["status"] == "failed")
    assert rows[0.1, 3]["reason"] != rows[1e30, 1]["reason"]
    assert [row["status"] for row in rows.values()].count("failed") == 3


def test_where_all_fail_the_next_search_starts_from_the_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_search(tmp_path, space={"learning_rates": {"choices": [1e30, 1e31]}}, trials=2)
    for _ in range(2):
        assert tune(tmp_path) == 2
        assert printed_error(capsys.readouterr().err).key == "tuning.lr"
    assert not list((tmp_path / "work").rglob("journal.log"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "trials"),
    [({"name": "successive_halving", "factor": 2}, 4), ({"name": "hyperband", "factor": 2}, None)],
)
def test_halving_rules_end_at_their_schedule(rule: dict[str, Any], trials: int | None, tmp_path: Path) -> None:
    data = searched(tmp_path, pruner=rule, trials=trials, max_concurrent_trials=None)
    epochs = sorted(row["epochs"] for row in leaderboard_of(data))
    assert epochs == ([1, 1, 2, 4] if trials else [1, 1, 2, 2, 2, 4, 4, 4, 4, 4])


@pytest.mark.slow
def test_a_sequence_gives_each_trial_the_same_curve(round_robin: Path, tmp_path: Path) -> None:
    sequence = searched(tmp_path, scheduler="sequential", max_concurrent_trials=None)
    known = [_curves_of(data) for data in (sequence, DataPaths(root=round_robin / "data"))]
    shared = known[0].keys() & known[1].keys()
    assert len(shared) > 5
    assert all(known[0][turn] == known[1][turn] for turn in shared)
    assert len({turn for turn in known[0] if turn[0] == "0"}) == 4  # the first has no other trial to be compared with


def _curves_of(data: DataPaths) -> dict[tuple[str, str], str]:
    """(trial, epoch) -> accuracy, as written."""
    rows = [line.split(",") for line in data.tuning_curves(NAME).read_text().splitlines()[1:]]
    return {(trial, epoch): accuracy for trial, epoch, accuracy, _ in rows}


def test_edits_during_a_search_are_not_in_its_parameter_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_search(tmp_path, trials=1, epochs=1, max_concurrent_trials=None)
    file = tmp_path / "params.yaml"

    def edited(*given: Any) -> SearchInputs:
        file.write_text(file.read_text() + "# not yet\n")
        return read_inputs(*given)

    monkeypatch.setattr("pipeline.commands.tune.run.read_inputs", edited)
    assert tune(tmp_path) == 0
    assert file.read_text().endswith("# not yet\n")
    assert "# not yet" not in data.tuned(NAME).read_text()


def test_images_replaced_while_a_search_runs_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_search(tmp_path, trials=1, epochs=1, max_concurrent_trials=None)
    run = Search.run

    def replaced(self: Search) -> SearchOutcome:
        outcome = run(self)
        write_array(data.images("test"), bright_images(22, seed=9)[0][::-1].copy())
        return outcome

    with monkeypatch.context() as patched:
        patched.setattr(Search, "run", replaced)
        assert tune(tmp_path) == 2
    assert printed_error(capsys.readouterr().err).key == str(data.root)
    assert not data.leaderboard(NAME).exists()
    assert tune(tmp_path) == 0


@pytest.mark.slow
def test_a_search_of_other_parameters_names_the_earlier_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = str(tmp_path / "work" / "tune" / NAME)
    for epochs, expected in ((1, False), (1, False), (2, True), (2, False)):
        write_search(tmp_path, trials=1, epochs=epochs, max_concurrent_trials=None)
        assert tune(tmp_path) == 0
        assert (earlier in capsys.readouterr().err) == expected


def test_the_importance_of_keys_is_their_share_in_the_variance() -> None:
    """The accuracy follows one of two keys; and both, one twice as far as the other: four times its variance."""
    grid = np.linspace(0, 1, 12)
    distributions: dict[str, Any] = {key: FloatDistribution(0, 1) for key in ("a", "b")}

    def shares(weight: float) -> dict[str, float]:
        study = create_study()
        for a in grid:
            trials = [
                create_trial(params={"a": a, "b": b}, distributions=distributions, value=a + weight * b) for b in grid
            ]
            study.add_trials(trials)
        return importances(study)

    assert shares(0)["a"] == pytest.approx(1, abs=0.02)
    assert shares(0.5) == pytest.approx({"a": 0.8, "b": 0.2}, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["round_robin", "sequential", "parallel"])
def test_a_search_resumes_after_sigterm(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_search(tmp_path, scheduler=way, max_concurrent_trials=None, dask={"scheduler": "local", "workers": 1})
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Search, "run", lambda _: signal.raise_signal(signal.SIGTERM))
    assert tune(tmp_path) == 75
    assert capsys.readouterr().err.splitlines()[-1].startswith("terminated: ")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_study_of_all_images_needs_no_filter(tmp_path: Path) -> None:
    data = write_search(tmp_path, trials=1, epochs=1, max_concurrent_trials=None)
    data.kept(NETWORK).unlink()
    assert tune(tmp_path) == 0
