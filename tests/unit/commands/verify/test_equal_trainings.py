"""`verify` on runs held against each other: equal bits are one training, unless the settings allow them until then."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.verify.equal_trainings import ComparedRun, check_equal_trainings
from pipeline.commands.verify.findings import Findings
from pipeline.commands.verify.recorded import StoredRun
from pipeline.durations import BatchStage
from pipeline.runs.ledger import RunResult
from pipeline.training.run_key import RunKey
from pipeline.training.settings import recorded_settings
from pipeline.training.state import ChainLink, HistoryRecord
from tests.fixtures.training import TINY

_STEPS = 8
_SETTINGS = replace(TINY, steps=_STEPS, schedule="constant", clip_norm=None)


def _result(*, losses: int = _STEPS, **changes: Any) -> RunResult:
    history = tuple(
        HistoryRecord(epoch=0.2 * step, step=step, examples=20 * step, train_loss=2.0 - step / 7, lr=0.05)
        for step in range(1, losses + 1)
    )
    links = tuple(ChainLink(step=step, sha256=f"{step:064x}") for step in (2, 4, _STEPS))
    result = RunResult(
        status="finished", top1=0.5, balanced_accuracy=0.5, loss=1.0, history=history, correct=None, workers=1,
        hardware=("made up",), skipped_steps=0, micro_batch=20, critical_batch=None, links=links, seconds=1.0,
    )  # fmt: skip
    return replace(result, **changes)


def _run(name: str, result: RunResult, *, job: dict[str, Any] | None = None, **settings: Any) -> StoredRun:
    changed = replace(_SETTINGS, **settings)
    parts = {"members": "m", "data": "d", "code": "c", **(job or {})}
    key = RunKey(job={"settings": recorded_settings(changed), **parts}, machine={"device": name})
    return StoredRun(fingerprint=name, folder=Path(name), key=key, settings=changed, result=result)


def _named(*runs: StoredRun) -> list[str]:
    """Return the run that is named, and by what: `b: hash chain`."""
    findings = Findings()
    check_equal_trainings([ComparedRun.of(run) for run in runs], findings)
    return [" of run".join(line.split(" of run")[:1]) for line in findings.differences]


_OTHER_CURVE = tuple(replace(record, train_loss=record.step / 3) for record in _result().history)
_OTHER_LINKS = tuple(replace(link, sha256=f"{link.step + 64:064x}") for link in _result().links)
_DECIDING: dict[str, dict[str, Any]] = {
    "seed": {"seed": 4},
    "network": {"network": "small_cnn"},
    "batch size": {"batch_size": 10},
    "rate": {"learning_rate": 0.1},
    "decay": {"weight_decay": 5e-3},
    "optimizer": {"optimizer": "lars", "optimizer_options": {"momentum": 0.9, "trust_coefficient": 1e-3}},
    "option": {"optimizer_options": {"momentum": 0.5, "nesterov": True}},
    "schedule": {"schedule": "cosine"},
    "warm-up": {"warmup_steps": 3},
    "smoothing": {"label_smoothing": 0.0},
    "flip": {"flip": False},
}


@pytest.mark.parametrize("name", _DECIDING)
def test_a_training_recorded_with_another_setting_is_named(name: str) -> None:
    """By its chain, and by its losses if the chain is made up and the test loss is another."""
    one = _run("a", _result())
    assert _named(one, _run("b", _result(), **_DECIDING[name])) == ["b: hash chain"]
    edited = _result(links=_OTHER_LINKS, loss=1.0 + 1e-9)
    assert _named(one, _run("b", edited, **_DECIDING[name])) == ["b: training curve"]


@pytest.mark.parametrize(("kept", "words"), [(2, "at step 2"), (4, "at step 4")])
def test_one_equal_link_is_enough(kept: int, words: str) -> None:
    links = tuple(
        link if link.step == kept else other for link, other in zip(_result().links, _OTHER_LINKS, strict=True)
    )
    findings = Findings()
    runs = [_run("a", _result()), _run("b", _result(history=_OTHER_CURVE, links=links), seed=4)]
    check_equal_trainings([ComparedRun.of(run) for run in runs], findings)
    (line,) = findings.differences
    assert words in line


def test_three_equal_losses_in_a_row_are_enough() -> None:
    history = (*_result().history[:3], *_OTHER_CURVE[3:])
    assert _named(_run("a", _result()), _run("b", _result(history=history, links=()), seed=4)) == ["b: training curve"]
    history = (*_result().history[:2], *_OTHER_CURVE[2:])
    assert _named(_run("a", _result()), _run("b", _result(history=history, links=()), seed=4)) == []


def test_diverged_runs_are_compared_too() -> None:
    diverged = _result(status="diverged", top1=None, balanced_accuracy=None, loss=None)
    assert _named(_run("a", diverged), _run("b", diverged, seed=4)) == ["b: hash chain"]
    assert _named(_run("a", _result()), _run("b", replace(diverged, links=()), seed=4)) == ["b: training curve"]


_WITHOUT_EFFECT: dict[str, dict[str, Any]] = {
    "evaluations": {"accuracy_steps": 2},
    "noise scale": {"noise_scale_steps": 1},
    "clipping above the gradients": {"clip_norm": 1e9},
    "decay below the rounding": {"weight_decay": 5e-4 + 1e-7},
    "epsilon": {"optimizer": "sgd", "optimizer_options": {"momentum": 0.9, "nesterov": True, "eps": 1e-9}},
    "workers without BatchNorm": {"simulated_workers": 1, "bn_group": 10},
    "precision of a CPU": {"precision": "tf32"},
}


@pytest.mark.parametrize("name", _WITHOUT_EFFECT)
def test_a_setting_that_may_have_no_effect_accuses_nobody(name: str) -> None:
    assert _named(_run("a", _result()), _run("b", _result(), **_WITHOUT_EFFECT[name])) == []


_LATER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "budget": ({}, {"steps": 100}),
    "growth": (
        {"batch_stages": (BatchStage(batch_size=10, until_step=6),)},
        {"batch_stages": (BatchStage(batch_size=10, until_step=6),), "batch_size": 40},
    ),
    "milestone": (
        {"schedule": "step", "schedule_options": {"milestones": [6], "factor": 0.1}},
        {"schedule": "step", "schedule_options": {"milestones": [7], "factor": 0.5}},
    ),
    "average": ({"ema_decay": 0.99}, {"ema_decay": 0.999}),
}


@pytest.mark.parametrize("name", _LATER)
def test_runs_may_be_one_training_until_their_settings_part(name: str) -> None:
    one, other = _LATER[name]
    history = (*_result().history[:5], *_OTHER_CURVE[5:])
    result = _result(history=history, links=(*_result().links[:2], _OTHER_LINKS[2]))
    assert _named(_run("a", _result(), **one), _run("b", result, **other)) == []


def test_images_decide_after_an_epoch_of_the_same_data() -> None:
    one, other = _run("a", _result()), _run("b", _result(), job={"members": "others"})
    assert _named(one, other) == ["b: hash chain"]
    early = _result(links=_result().links[:2], history=_result().history[:4])
    assert _named(_run("a", early), _run("b", early, job={"members": "others"})) == []
    # Other test images, or labels that were changed in the data, may leave the training as it is.
    assert _named(one, _run("b", _result(), job={"data": "other"})) == []
    assert _named(one, _run("b", _result(), job={"data": "other", "labels": "changed"})) == []


def test_weights_that_are_no_number_are_equal() -> None:
    result = _result(
        status="diverged", top1=None, balanced_accuracy=None, loss=None, links=_result().links[2:],
        history=(HistoryRecord(epoch=1.6, step=8, examples=160, train_loss=None, lr=0.05),),
    )  # fmt: skip
    assert _named(_run("a", result), _run("b", result, learning_rate=5.0)) == []
    assert _named(_run("a", result), _run("b", result, seed=4)) == ["b: hash chain"]


def test_skipped_steps_leave_the_weights_as_they_are() -> None:
    skipped = _result(skipped_steps=3)
    assert _named(_run("a", skipped), _run("b", skipped, learning_rate=0.1)) == []


def test_a_loss_that_stays_proves_nothing() -> None:
    for value in (0.0, 2.302585):
        flat = tuple(replace(record, train_loss=value) for record in _result().history)
        runs = [_run(name, _result(history=flat, links=()), seed=seed) for seed, name in enumerate("ab")]
        assert _named(*runs) == []


def test_a_curve_of_one_record_proves_nothing() -> None:
    one, other = _result(losses=1, links=()), _result(losses=1, links=())
    assert _named(_run("a", one), _run("b", other, weight_decay=5e-3)) == []


def test_settings_of_another_version_have_a_seed() -> None:
    other = replace(_run("b", _result(), seed=4), settings=None)
    assert _named(_run("a", _result()), other) == ["b: hash chain"]
    assert _named(_run("a", _result()), replace(_run("b", _result(), learning_rate=1.0), settings=None)) == []
