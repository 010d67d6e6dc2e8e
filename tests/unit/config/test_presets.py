"""Every preset is valid, and the paper's says of each value where it is from."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from pipeline.commands.main_effects import read_settings
from pipeline.commands.plan.size import DataSize, deduplicate_runs, plan_from_sizes
from pipeline.commands.tune.outputs import check_fair
from pipeline.config.params import load_params
from pipeline.config.search_checks import check_space
from pipeline.replication.published import PUBLISHED
from pipeline.stats.factorial import aliased_interactions, design_problem, find_factors

_FOLDER = Path(__file__).parents[3] / "presets"
_PAPER, _SMALL, _MCCORD, _LAW = (_FOLDER / f"{name}.yaml" for name in ("paper", "paper-small", "mccord", "warmup-law"))


@pytest.mark.parametrize("path", sorted(_FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_preset_is_valid_and_names_the_schema(path: Path) -> None:
    load_params(path)
    assert path.read_text().startswith("# yaml-language-server: $schema=params.schema.json\n# ")


def test_paper_preset_holds_what_the_paper_states() -> None:
    params = load_params(_PAPER)
    assert params.networks == ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
    assert params.prepare.dataset == "cifar10"
    assert params.finetune.weights == "imagenet"
    assert isinstance(params.filter.drop_fraction, dict)
    # Table I, in images.
    assert {name: round(50_000 * float(share)) for name, share in params.filter.drop_fraction.items()} == {
        "resnet18": 3105, "resnet34": 3275, "resnet50": 3667, "resnet101": 2562, "resnet152": 620,
    }  # fmt: skip
    assert params.train.simulated_workers == 8
    assert params.train.decay_norm_and_bias
    for name, study in params.studies.items():
        recipe = study.effective_recipe(params.train)
        assert recipe.augmentation.crop_size == (None if name == "no_augmentation" else 28)
        assert recipe.optimizer.name == "sgd"
        assert study.budget.epochs == 50
        # Fewer seeds can claim nothing of arms that differ.
        assert len(study.seeds) >= (6 if "filtered" in study.arms else 4)
    sizes = params.studies["fig5"].batch_sizes
    assert (min(sizes), max(sizes)) == (16, 20480)
    assert params.studies["fig6"].weight_decays == (0.005, 0.01, 0.012, 0.0135)
    assert {6272, 10368} <= set(params.studies["fig7"].batch_sizes)
    assert params.studies["fig7"].weight_decays == (0.005, 0.01)


@pytest.mark.parametrize("path", [_PAPER, _SMALL], ids=lambda path: path.stem)
def test_each_figure_of_the_paper_is_a_study_that_names_it(path: Path) -> None:
    params = load_params(path)
    figures = {name: study.paper_figure for name, study in params.studies.items()}
    assert figures == {
        **{f"table1_{network}": "gahlot-2020-table1" for network in params.networks},
        **{name: f"gahlot-2020-{name.removesuffix('_epochs')}" for name in figures if name.startswith("fig")},
        # Without a figure in the paper, which states what they test.
        **dict.fromkeys(("no_augmentation", "batch_norm", "batch_norm_groups")),
    }
    assert {"fig4", "fig5", "fig6", "fig7", "fig6_epochs", "fig7_epochs"} <= set(figures)
    for name, study in params.studies.items():
        assert study.filter_network == (name.removeprefix("table1_") if name.startswith("table1_") else "resnet101")
    for name in ("fig6", "fig7"):
        steps, epochs = params.studies[name], params.studies[f"{name}_epochs"]
        assert (steps.match, epochs.match) == ("steps", "epochs")
        assert epochs == steps.model_copy(update={"match": "epochs", "keep_weights": epochs.keep_weights})


@pytest.mark.parametrize("path", [_PAPER, _SMALL], ids=lambda path: path.stem)
def test_every_published_accuracy_has_a_setting(path: Path) -> None:
    params = load_params(path)
    for study in params.studies.values():
        if study.paper_figure is None:
            continue
        missing = {
            (point.arm, point.batch_size)
            for point in PUBLISHED[study.paper_figure].points
            if point.arm not in study.arms
            or point.batch_size not in study.batch_sizes
            or not {*point.weight_decays} & {*study.weight_decays}
        }
        cut = (
            {("filtered", 128), ("random", 128), ("random", 256)} if study.paper_figure == "gahlot-2020-fig6" else set()
        )
        assert missing == (cut if path == _SMALL else set())


def test_the_small_preset_differs_from_the_papers_in_size_alone() -> None:
    paper, small = load_params(_PAPER), load_params(_SMALL)
    assert (small.networks, small.filter, small.reduce) == (paper.networks, paper.filter, paper.reduce)
    targets = {"target_train_loss": paper.report.target_train_loss, "target_top1": paper.report.target_top1}
    assert small.report.model_copy(update=targets) == paper.report
    assert small.train.model_copy(update={"schedule": paper.train.schedule}) == paper.train
    assert small.finetune.model_copy(update={"budget": paper.finetune.budget}) == paper.finetune
    assert small.prepare.train_size == 0.2
    for name, study in small.studies.items():
        whole = paper.studies[name]
        assert len(study.seeds) >= 3
        assert (study.paper_figure, study.match, study.recipe) == (whole.paper_figure, whole.match, whole.recipe)
        for axis in ("models", "arms", "batch_sizes", "learning_rates", "weight_decays", "seeds"):
            assert {*getattr(study, axis)} <= {*getattr(whole, axis)}


def test_mccords_preset_holds_what_the_paper_states() -> None:
    params = load_params(_MCCORD)
    assert params.studies["baseline"].batch_sizes == (3840, 7680, 15360, 23040, 30720)
    for name, study in params.studies.items():
        recipe = study.effective_recipe(params.train)
        assert (study.models, study.arms, study.budget.epochs) == (("resnet50",), ("full",), 90)
        assert study.learning_rates == (0.0125,)
        schedule = recipe.schedule
        assert schedule.name == "step"
        assert [milestone.epochs for milestone in schedule.milestones] == [30, 60]
        assert schedule.warmup.epochs == (float(name.removeprefix("warmup_")) if name.startswith("warmup_") else 5)
        assert (recipe.lr_scaling is None) == (name == "unscaled")
        assert all(batch % recipe.simulated_workers == 0 for batch in study.batch_sizes)
    warmups = [study for name, study in params.studies.items() if name.startswith("warmup_")]
    assert [study.batch_sizes for study in warmups] == [(7680, 30720)] * 4


def test_studies_of_the_warm_up_law_differ_in_their_warm_up_alone() -> None:
    params, mccord = load_params(_LAW), load_params(_MCCORD)
    warmups = []
    for study in params.studies.values():
        recipe = study.effective_recipe(params.train)
        assert recipe.schedule.name == "step"
        warmups.append(recipe.schedule.warmup.epochs)
        assert study.model_copy(update={"recipe": {}}) == params.studies["warmup_0"].model_copy(update={"recipe": {}})
        assert study.learning_rates == mccord.studies["baseline"].learning_rates
        assert recipe.lr_scaling is not None
        assert mccord.train.lr_scaling is not None
        assert recipe.lr_scaling.rule == mccord.train.lr_scaling.rule
        # A longer one would never reach the peak, and be best where that is too high.
        assert recipe.schedule.milestones[0].epochs == 1
    assert warmups == [0, 0.25, 0.5, 0.75, 1]


def test_the_searches_of_the_tuning_preset_can_be_run_and_compared() -> None:
    params = load_params(_FOLDER / "cifar10-tuning.yaml")
    assert set(params.tuning) == {"sgd", "lamb"}
    for name, tuning in params.tuning.items():
        check_space(f"tuning.{name}", tuning, params.studies[tuning.study], params.train)
    check_fair(params.tuning)
    # The metric of the searches, and what they run on.
    assert params.prepare.val_size > 0
    assert (params.dask.scheduler, {tuning.scheduler for tuning in params.tuning.values()}) == ("local", {"parallel"})


def test_the_batch_size_preset_accumulates_to_the_same_bits() -> None:
    params = load_params(_FOLDER / "batch-size-tuning.yaml")
    ((name, tuning),) = params.tuning.items()
    check_space(f"tuning.{name}", tuning, params.studies[tuning.study], params.train)
    assert (params.train.workers, params.train.reduction) == (1, "exact")
    assert params.train.simulated_workers > 1
    assert len(tuning.space["batch_sizes"].choices or ()) >= 3
    assert (tuning.pruner.name, tuning.scheduler) == ("threshold", "parallel")
    assert params.prepare.val_size > 0


# What the text does not state, or states in two ways.
_OPEN = {
    "batch_size",
    "learning_rate",
    "learning_rates",
    "weight_decay",
    "schedule",
    "lr_scaling",
    "decay_norm_and_bias",
    "label_smoothing",
    "stem",
    "weights",
    "pca",
    "tsne",
    "min_samples",
    "match",
}


@pytest.mark.parametrize("path", [_PAPER, _MCCORD], ids=lambda path: path.stem)
def test_every_value_of_a_papers_preset_says_where_it_is_from(path: Path) -> None:
    lines = path.read_text().splitlines()
    values = list(_values(YAML().load(path)))
    assert len(values) > 70
    for key, number in values:
        comment = lines[number].partition(" # ")[2]
        assert re.match(r"paper\b|our choice\b", comment), f"line {number + 1}: {lines[number]}"
        if path == _PAPER and key in _OPEN:
            assert comment.startswith("our choice"), f"line {number + 1}: {key} is not stated by the paper"


def test_open_values_of_stated_keys_are_marked_too() -> None:
    """The optimizer is stated and its momentum is not; the crop is stated and the flip is not."""
    for line in _PAPER.read_text().splitlines():
        if line.strip().startswith(("optimizer:", "augmentation:")):
            assert "paper" in line
            assert line.endswith("our choice")


def _values(node: Any) -> Iterator[tuple[str, int]]:
    """Key and line of everything that is written on one line; sections hold such lines."""
    for key, value in node.items():
        if hasattr(value, "fa") and not value.fa.flow_style() and hasattr(value, "items"):
            yield from _values(value)
        else:
            yield key, node.lc.key(key)[0]


def test_the_law_preset_counts_its_runs_and_has_the_laws_sizes() -> None:
    path = _FOLDER / "law.yaml"
    params, text = load_params(path), path.read_text()
    size = DataSize(n_train=10_000, n_test=10_000, n_classes=10, source="published")
    plans = {name: plan_from_sizes(params, name, size, {"resnet18": 8000}) for name in params.studies}
    unique = deduplicate_runs(plans)
    for name, plan in unique.items():
        assert not plan.skipped
        counted = re.search(rf"^#   {name} +([0-9]+) +(?:of ([0-9]+))?", text, flags=re.MULTILINE)
        assert counted is not None, name
        assert (int(counted[1]), int(counted[2] or counted[1])) == (len(plan.missing), plan.total), name
    trained, named = sum(len(plan.missing) for plan in unique.values()), sum(plan.total for plan in plans.values())
    assert f"{trained} are trained, of {named} that the studies name" in " ".join(text.replace("\n# ", " ").split())
    steps = {run.settings.batch_size: run.settings.steps for run in plans["law_steps"].missing}
    assert steps == {16: 3750, 64: 937, 256: 234, 1024: 100, 4096: 60}
    noise = params.prepare.plant_label_noise
    assert noise is not None
    assert noise.kind == "symmetric"
    assert params.studies["confirm"].equivalent_sizes(params.train) == {64: 48, 1024: 776}


@pytest.mark.parametrize("size", [64, 1024, 4096])
def test_the_law_searches_the_rate_of_both_arms_at_its_length(size: int) -> None:
    params = load_params(_FOLDER / "law.yaml")
    searches = {name: params.tuning[name] for name in (f"full_{size}", f"filtered_{size}")}
    assert [params.studies[search.study].arms[0] for search in searches.values()] == ["full", "filtered"]
    budget = params.studies["law_steps"].budget_at(size).epochs
    assert budget is not None
    assert all(abs(search.epochs - budget) < 1 for search in searches.values())


def test_the_factorial_preset_is_a_design_of_resolution_four() -> None:
    params = load_params(_FOLDER / "mccord-factorial.yaml")
    recorded = [
        {"train": study.effective_recipe(params.train).model_dump(mode="json"), "study": study.model_dump(mode="json")}
        for study in params.studies.values()
    ]
    factors = find_factors([read_settings(parameters, Path()) for parameters in recorded])
    assert {factor.keys[0] for factor in factors} == {
        "optimizer.name", "schedule.name", "lr_scaling.rule", "schedule.warmup.epochs", "decay_norm_and_bias",
        "label_smoothing",
    }  # fmt: skip
    assert design_problem(factors) is None
    assert aliased_interactions(factors) == [[]] * 6
    a, b, c, d, e, f = (
        np.array(next(factor.signs for factor in factors if key in factor.keys))
        for key in (
            "schedule.warmup.epochs", "lr_scaling.rule", "optimizer.name", "schedule.name", "decay_norm_and_bias",
            "label_smoothing",
        )
    )  # fmt: skip
    # All factors are low in the first study, where a product of three is low, too.
    np.testing.assert_array_equal(e, a * b * c)
    np.testing.assert_array_equal(f, b * c * d)
    levels = [
        {letter for letter, signs in zip("ABCDEF", (a, b, c, d, e, f), strict=True) if signs[i] > 0} for i in range(16)
    ]
    stated = re.findall(r"^  f\d\d: # (.*)$", (_FOLDER / "mccord-factorial.yaml").read_text(), flags=re.MULTILINE)
    assert [set(names.split()) if names.isupper() else set() for names in stated] == levels
