"""Samplers repeat the values of a search; the journal keeps the results of a killed one."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.tuning import Domain, Tuning
from pipeline.errors import InputError
from pipeline.tuning.scheduler import TrialStep
from pipeline.tuning.storage import (
    StepResult,
    TrialSampler,
    TrialStorage,
    from_optuna_params,
    to_distributions,
    to_optuna_params,
)

SECTIONS = [{"name": "lamb"}, {"name": "sgd", "momentum": 0.5}]
SPACE = {
    "learning_rates": {"log_uniform": [1e-3, 1.0]},
    "batch_sizes": {"int_uniform": [2, 9]},
    "recipe.label_smoothing": {"uniform": [0.0, 0.2]},
    "recipe.optimizer": {"choices": SECTIONS},
}


def search(**changes: Any) -> Tuning:
    tree = {"study": "tiny", "space": SPACE, "sampler": {"name": "random"}, "trials": 40, "max_concurrent_trials": 2}
    return Tuning.model_validate({**tree, "epochs": 2, "pruner": {"name": "none"}, **changes}, strict=False)


def asked(tuning: Tuning, n: int, score: Callable[[dict[str, Any]], float]) -> list[dict[str, Any]]:
    """Values of `n` trials, with `tell` for each before the next `ask`."""
    sampler, values = TrialSampler(tuning), []
    for trial in range(n):
        values.append(from_optuna_params(tuning.space, sampler.ask()))
        sampler.report(trial, 1, score(values[-1]))
        sampler.tell(trial, "finished", score(values[-1]))
    return values


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_equal_searches_get_equal_values_within_their_bounds(sampler: str) -> None:
    first, again, other = (
        asked(search(sampler={"name": sampler}, seed=seed), 12, lambda values: values["recipe.label_smoothing"])
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert all(0.001 <= values["learning_rates"] <= 1 for values in first)
    assert {values["batch_sizes"] for values in first} <= set(range(2, 10))
    assert all(values["recipe.optimizer"] in SECTIONS for values in first)


def test_tpe_learns_where_it_is_good() -> None:
    values = asked(search(sampler={"name": "tpe"}), 40, lambda values: 1 - abs(values["recipe.label_smoothing"] - 0.05))
    early, late = (
        sum(abs(one["recipe.label_smoothing"] - 0.05) for one in part) for part in (values[:10], values[-10:])
    )
    assert late < early / 2


def test_a_grid_has_every_combination_once() -> None:
    space = {"batch_sizes": {"int_uniform": [2, 4]}, "recipe.optimizer": {"choices": SECTIONS}}
    values = asked(search(sampler={"name": "grid"}, space=space, trials=None), 6, lambda _: 0.5)
    for expected in product([2, 3, 4], SECTIONS):
        assert {"batch_sizes": expected[0], "recipe.optimizer": expected[1]} in values


@given(choices=st.lists(st.none() | st.booleans() | st.floats(0, 1) | st.text(), min_size=1, unique_by=str))
def test_choices_of_any_kind_round_trip(choices: list[Any]) -> None:
    space = {"key": Domain.model_validate({"choices": choices}, strict=False)}
    for choice in choices:
        sampled = to_optuna_params(space, {"key": choice})
        assert from_optuna_params(space, sampled) == {"key": choice}
        assert to_distributions(space)["key"].single() == (len(choices) == 1)


def test_the_journal_is_read_back_even_after_half_a_line(tmp_path: Path) -> None:
    tuning, path = search(), tmp_path / "work" / "journal.log"
    sampled, journal = TrialSampler(tuning).ask(), TrialStorage(path)
    for trial in range(3):
        journal.start(trial, sampled, to_distributions(tuning.space))
    reported = {
        TrialStep(0, 1): StepResult(0.25),
        TrialStep(0, 2): StepResult(0.5),
        TrialStep(1, 1): StepResult(0.1),
        TrialStep(2, 1): StepResult(None, "the loss stopped being finite"),
    }
    for turn, result in reported.items():
        journal.add(turn, result, seconds=turn.trial + 2.0, switch_seconds=0.5)
    journal.end(0, "finished", 0.5)
    journal.end(1, "eliminated", 0.1)
    journal.add(TrialStep(1, 2), StepResult(0.9), seconds=7.0, switch_seconds=0.25)
    path.write_bytes(path.read_bytes() + b'{"op_code": 8, "tri')
    again = TrialStorage(path)
    for turn, result in {**reported, TrialStep(1, 2): StepResult(0.9)}.items():
        assert again.result(turn) == result
    assert again.result(TrialStep(1, 3)) is None
    # Of every epoch that was trained, before and after the end of its trial; one that failed is none.
    assert again.epoch_times == journal.epoch_times == [(2.0, 0.5), (2.0, 0.5), (3.0, 0.5), (7.0, 0.25)]
    again.end(0, "finished", 0.5)
    again.start(0, sampled, to_distributions(tuning.space))
    again.start(3, sampled, to_distributions(tuning.space))
    assert TrialStorage(path).result(TrialStep(3, 1)) is None


def test_optuna_reads_a_copy_of_the_journal(tmp_path: Path) -> None:
    """As docs/guides/tuning.md says, while the search runs."""
    tuning, path = search(), tmp_path / "journal.log"
    journal = take_up(path, tuning)
    journal.add(TrialStep(0, 1), StepResult(0.25), seconds=2.0, switch_seconds=0.5)
    journal.end(0, "eliminated", 0.25)
    copy = shutil.copy(path, tmp_path / "copy.log")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(copy)))
    trials = optuna.load_study(study_name="search", storage=storage).trials_dataframe()
    assert trials["state"].tolist()[:2] == ["PRUNED", "RUNNING"]
    assert trials["value"][0] == 0.25
    assert {f"params_{key}" for key in tuning.space} <= set(trials.columns)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO])
def test_an_error_of_the_disk_names_the_journal(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning, path = search(), tmp_path / "journal.log"
    journal = take_up(path, tuning)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(number, os.strerror(number))))
        with pytest.raises(OSError) as raised:  # noqa: PT011 - its file is checked below
            journal.add(TrialStep(0, 1), StepResult(0.5), seconds=2.0, switch_seconds=0.5)
    assert raised.value.filename == str(path)
    again = take_up(path, tuning)
    again.add(TrialStep(0, 1), StepResult(0.5), seconds=2.0, switch_seconds=0.5)
    assert TrialStorage(path).result(TrialStep(0, 1)) == StepResult(0.5)


@pytest.mark.parametrize("damaged", [b"\xff\xfe" * 9, b'{"op_code": 8, "tri'])
def test_a_journal_damaged_in_the_middle_is_named_with_the_line(damaged: bytes, tmp_path: Path) -> None:
    tuning, path = search(), tmp_path / "journal.log"
    journal = TrialStorage(path)
    for trial in range(2):
        journal.start(trial, TrialSampler(tuning).ask(), to_distributions(tuning.space))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], damaged + b"\n", *lines[2:]]))
    with pytest.raises(InputError) as raised:
        TrialStorage(path)
    assert raised.value.key == str(path)
    assert "2" in str(raised.value).removeprefix(str(path)).split(), "the line"
    path.write_bytes(lines[0])
    TrialStorage(path)


def take_up(path: Path, tuning: Tuning) -> TrialStorage:
    sampler, journal = TrialSampler(tuning), TrialStorage(path)
    for trial in range(2):
        journal.start(trial, sampler.ask(), to_distributions(tuning.space))
    return journal


def write_search(path: Path, tuning: Tuning) -> None:
    """A search of two trials, of which one failed."""
    journal = take_up(path, tuning)
    journal.add(TrialStep(0, 1), StepResult(0.5), seconds=2.0, switch_seconds=0.5)
    journal.add(TrialStep(1, 1), StepResult(None, "the loss stopped being finite"), seconds=2.0, switch_seconds=0.5)
    journal.end(0, "finished", 0.5)


def test_a_journal_without_one_of_its_lines_is_refused_or_resumes(tmp_path: Path) -> None:
    tuning, path = search(), tmp_path / "journal.log"
    write_search(path, tuning)
    lines = path.read_bytes().splitlines(keepends=True)
    known = {TrialStep(0, 1): StepResult(0.5), TrialStep(1, 1): StepResult(None, "the loss stopped being finite")}
    refused = []
    for number in range(len(lines)):
        path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
        try:
            journal = take_up(path, tuning)
        except InputError:
            refused.append(number)
        else:
            # What is not known any more is trained again.
            assert all(journal.result(turn) in (None, result) for turn, result in known.items())
    assert 0 in refused


@pytest.mark.parametrize(
    "line",
    [
        "1",
        "null",
        "{}",
        "[]",
        "[" * 5000,
        '{"op_code": 7}',
        '{"op_code": [], "worker_id": "a"}',
        '{"op_code": true, "worker_id": "a", "study_id": 0}',
        '{"op_code": 4, "worker_id": "a", "study_id": [], "datetime_start": null}',
        '{"op_code": 6, "worker_id": "a", "trial_id": 0, "state": 1}',
        '{"op_code": 7, "worker_id": "a", "trial_id": 0, "step": "x", "intermediate_value": 0.5}',
        '{"op_code": 99, "worker_id": "a"}',
    ],
)
def test_json_other_than_a_journal_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    write_search(path, search())
    before = path.read_bytes()
    path.write_bytes(before + f"{line}\n".encode())
    with pytest.raises(InputError) as raised:
        TrialStorage(path)
    assert raised.value.key == str(path)
    assert f"line {len(before.splitlines()) + 1} is damaged; remove it" in str(raised.value)


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        (2, {"distributions": []}),
        (2, {"user_attrs": 3, "state": 3}),
        (4, {"intermediate_value": "x"}),
        (4, {"intermediate_value": None}),
        (4, {"intermediate_value": 1.5}),
        (3, {"user_attr": {"seconds 0 1": [None, 0.5]}}),
        (3, {"user_attr": {"seconds 0 1": ["a", "b"]}}),
        (3, {"user_attr": {"seconds 0 1 9": [2.0, 0.5]}}),
        (3, {"user_attr": {"afterwards 0 2": [0.5, 7]}}),
        (3, {"user_attr": {"afterwards 0 2": ["x", ""]}}),
        (5, {"user_attr": {"reason": 3}}),
    ],
    ids=str,
)
def test_lines_that_no_search_writes_are_refused(line: int, changes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    write_search(path, search())
    lines = path.read_text().splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | changes)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError) as raised:
        TrialStorage(path)
    assert raised.value.key == str(path)
    assert "a line is missing or invalid" in str(raised.value)


def test_a_trial_cannot_take_other_values_than_before(tmp_path: Path) -> None:
    tuning = search()
    sampler, journal = TrialSampler(tuning), TrialStorage(tmp_path / "journal.log")
    journal.start(0, sampler.ask(), to_distributions(tuning.space))
    with pytest.raises(InputError) as raised:
        TrialStorage(tmp_path / "journal.log").start(0, sampler.ask(), to_distributions(tuning.space))
    assert raised.value.key == str(tmp_path / "journal.log")
