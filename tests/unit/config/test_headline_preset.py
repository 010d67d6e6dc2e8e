"""The preset headline trains what its comments and docs/guides/headline.md say."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.commands.plan.size import DataSize, StudyPlan, deduplicate_runs, plan_from_sizes
from pipeline.config.params import Params, load_params

_ROOT = Path(__file__).parents[3]
_PRESET = _ROOT / "presets" / "headline.yaml"
_SIZE = DataSize(n_train=50_000, n_test=10_000, n_classes=10, source="published")
_KEPT = 50_000 - 2_562


@pytest.fixture(scope="module")
def params() -> Params:
    return load_params(_PRESET)


@pytest.fixture(scope="module")
def plans(params: Params) -> dict[str, StudyPlan]:
    """A run by two processes has other CPU threads, and is another run."""
    by_study = {}
    for name, study in params.studies.items():
        plan = plan_from_sizes(params, name, _SIZE, dict.fromkeys(study.filter_networks, _KEPT))
        by_study[name] = replace(plan, threads=1 if name.startswith("two_processes") else 2)
    return by_study


def test_the_filter_drops_the_papers_counts(params: Params) -> None:
    shares = params.filter.drop_fraction
    assert isinstance(shares, dict)
    assert {name: 50_000 * shares[name] for name in params.networks} == {
        "resnet101": pytest.approx(2562, abs=1e-6), "resnet152": pytest.approx(620, abs=1e-6),
        "resnet101-r1": pytest.approx(2562, abs=1e-6), "resnet101-r2": pytest.approx(2562, abs=1e-6),
    }  # fmt: skip


def test_the_runs_are_as_many_as_the_head_says(plans: dict[str, StudyPlan]) -> None:
    head = _PRESET.read_text().partition("\nprepare:")[0]
    stated = {name: int(count) for name, count in re.findall(r"^#   (\w+)\*? +(\d+)\b", head, flags=re.MULTILINE)}
    trained = {name: len(plan.missing) for name, plan in deduplicate_runs(plans).items()}
    steps = [trained.pop(name) for name in list(trained) if name.startswith("steps_20480_")]
    assert {**trained, "steps_20480_": sum(steps)} == stated
    total = sum(stated.values())
    numbers = {int(number) for number in re.findall(r"\b\d+\b", head)}
    # All runs, those trained, and those trained where batch_6272 stops at its first look.
    assert {sum(plan.total for plan in plans.values()), total, total - 18} <= numbers


def test_budgets_are_600_000_images_and_the_papers_122_steps(plans: dict[str, StudyPlan]) -> None:
    steps = {
        name: {(spec.settings.batch_size, spec.settings.steps) for spec in plan.missing} for name, plan in plans.items()
    }
    assert steps.pop("batch_16") == steps.pop("two_processes_16") == {(16, 18_750)}
    assert steps.pop("epochs_6272") == {(6272, 96), (6272, 91)}
    assert steps.pop("slopes") == steps.pop("two_processes") == {(256, 2344), (2048, 293), (6272, 96), (20480, 30)}
    for name in ("sgd", "lars", "muon"):
        assert steps.pop(f"steps_20480_{name}") == {(20480, 122)}
    (ramp,) = plans["steps_20480_ramp"].missing
    assert steps.pop("steps_20480_ramp") == {(20480, ramp.settings.steps)}
    assert 0 <= ramp.settings.batch_sizes.examples(ramp.settings.steps) - 122 * 20_480 < 20_480
    assert steps == {
        "batch_6272": {(6272, 96)}, "batch_256": {(256, 2344)}, "batch_20480": {(20480, 30)},
        "draws_6272": {(6272, 96)},
    }  # fmt: skip


def test_every_study_states_a_plan_and_the_queue_has_them_all(params: Params) -> None:
    assert all(study.plan for study in params.studies.values())
    text = (_ROOT / "docs" / "guides" / "headline.md").read_text()
    (queue,) = re.findall(r"for study in ([\w\s\\]+); do", text)
    assert queue.replace("\\", "").split() == list(params.studies)
