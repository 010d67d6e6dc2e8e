"""The runs of a grid."""

import dataclasses
import itertools
import json
import re
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.config.study import Arm, Study, TrainConfig
from pipeline.errors import InputError
from pipeline.runs.arm_rows import FilterDecisions, train_rows
from pipeline.runs.grid import RunSpec, expand_grid, run_variant
from pipeline.runs.ledger import RunResult
from pipeline.runs.study_tables import HISTORY_SCHEMA, RUNS_SCHEMA, run_row
from pipeline.training.noise_scale import NoiseScale
from pipeline.training.settings import DatasetInfo
from pipeline.training.state import ChainLink, HistoryRecord
from tests.fixtures.projects import NETWORK
from tests.fixtures.training import TINY_STUDY

DATA = DatasetInfo(n_classes=4, image_size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
N_FULL, N_KEPT = 100, 80
KEPT = {NETWORK: N_KEPT, f"{NETWORK}-r1": N_KEPT - 30}


def _specs(train: Any = None, **study: Any) -> list[RunSpec]:
    grid = Study.model_validate_json(json.dumps({**TINY_STUDY, **study}))
    return expand_grid(grid, TrainConfig.model_validate(train or {}), DATA, N_FULL, KEPT)


def _mask(spec: RunSpec, labels: NDArray[np.int64], keep: dict[str, NDArray[np.bool_]]) -> NDArray[np.bool_]:
    decisions = {network: FilterDecisions(keep=kept, labels=labels) for network, kept in keep.items()}
    return train_rows(spec, labels, decisions).mask


def test_every_combination_is_a_run_once() -> None:
    axes: dict[str, list[Any]] = {
        "models": ["resnet18", "resnet34"], "batch_sizes": [10, 20], "learning_rates": [0.1, 0.2, 0.3],
        "weight_decays": [0.0, 0.1], "seeds": [0, 1, 2], "arms": ["full", "filtered", "random"],
    }  # fmt: skip
    specs = _specs(**axes)
    got = [
        (c.settings.network, c.settings.batch_size, c.learning_rate, c.settings.weight_decay, c.settings.seed, c.arm)
        for c in specs
    ]
    assert got == list(itertools.product(*axes.values()))


def test_runs_have_the_sizes_of_their_arms() -> None:
    sizes = {c.arm: c.n_train for c in _specs(arms=list(get_args(Arm)))}
    assert sizes == {"full": 100, "filtered": 80, "random": 80, "random_uniform": 80, "relabeled": 100}


def test_the_bound_of_relabels_is_that_of_one_arm() -> None:
    specs = _specs(arms=["full", "relabeled"], relabel_above=0.5, filter_replicates=2, seeds=[0])
    assert [(c.arm, c.filter_network, c.relabel_above) for c in specs] == [
        ("full", "resnet18", None),
        ("relabeled", "resnet18", 0.5),
        ("relabeled", "resnet18-r1", 0.5),
    ]


@pytest.mark.parametrize(
    ("match", "steps"), [("steps", {"full": 20, "random": 20}), ("epochs", {"full": 20, "random": 16})]
)
def test_arms_match_in_steps_or_in_epochs(match: str, steps: dict[str, int]) -> None:
    specs = _specs(arms=["full", "random"], batch_sizes=[10], budget={"epochs": 2.0}, match=match)
    assert {c.arm: c.settings.steps for c in specs} == steps


def test_a_batch_above_one_arm_is_skipped_for_all_of_them() -> None:
    specs = _specs(batch_sizes=[80, 90, 200])
    skipped = {(c.arm, c.settings.batch_size): c.skip_reason for c in specs}
    assert [skipped[arm, 80] for arm in ("full", "filtered", "random")] == ["", "", ""]
    for batch in (90, 200):
        reason = f"batch {batch} is larger than the 80 images of arm filtered"
        assert [skipped[arm, batch] for arm in ("full", "filtered", "random")] == [reason] * 3


def test_only_the_arms_of_the_study_decide_what_is_skipped() -> None:
    assert not any(c.skip_reason for c in _specs(arms=["full"], batch_sizes=[90]))


# Five epochs of 100 images at batch 20, and so in proportion to the batch, of a budget of ten.
LONG_AT_LARGE: dict[str, Any] = {
    "schedule": {"name": "cosine", "warmup": {"epochs": 5.0}},
    "lr_scaling": {"rule": "legw", "reference_batch_size": 20},
}


def test_the_warm_up_of_a_skipped_batch_need_not_fit() -> None:
    specs = _specs(LONG_AT_LARGE, batch_sizes=[20, 40, 200], budget={"epochs": 10.0})
    assert {c.settings.batch_size for c in specs if not c.skip_reason} == {20, 40}
    assert {(c.settings.warmup_steps, c.settings.steps) for c in specs if c.skip_reason} == {(25, 5)}


def test_the_warm_up_of_a_batch_that_runs_must_fit() -> None:
    with pytest.raises(InputError) as raised:
        _specs(LONG_AT_LARGE, batch_sizes=[20, 80, 200], budget={"epochs": 10.0})
    assert raised.value.key == "schedule.warmup"
    assert re.findall(r"\d+", str(raised.value)) == ["25", "80", "13"]  # steps, batch, steps of the budget


def test_rates_are_scaled_and_recorded_as_written() -> None:
    scaling = {"rule": "linear", "reference_batch_size": 10}
    (spec,) = _specs({"lr_scaling": scaling}, arms=["full"], seeds=[0], batch_sizes=[20])
    assert spec.learning_rate == 0.05
    assert spec.settings.learning_rate == 0.1


def test_the_studys_recipe_overrides_the_common_one() -> None:
    (spec, *_) = _specs({"label_smoothing": 0.1, "stem": "cifar"}, recipe={"label_smoothing": 0.2})
    assert spec.settings.label_smoothing == 0.2
    assert spec.settings.stem == "cifar"


def test_random_arms_use_the_seed_of_the_run() -> None:
    labels = np.arange(N_FULL) % 4
    keep = np.arange(N_FULL) % 5 > 0
    members = {(c.arm, c.settings.seed): _mask(c, labels, {NETWORK: keep}) for c in _specs()}
    assert members["full", 0].all()
    assert members["filtered", 0].tolist() == members["filtered", 1].tolist() == keep.tolist()
    assert members["random", 0].tolist() != members["random", 1].tolist()


def test_filter_replicates_have_separate_arms() -> None:
    specs = _specs(filter_replicates=2, seeds=[0], match="epochs")
    assert [(c.arm, c.filter_network, c.n_train) for c in specs] == [
        ("full", "resnet18", 100),
        ("filtered", "resnet18", 80),
        ("filtered", "resnet18-r1", 50),
        ("random", "resnet18", 80),
        ("random", "resnet18-r1", 50),
    ]
    labels = np.arange(N_FULL) % 4
    first = np.arange(N_FULL) % 5 > 0
    # Another filter with the same counts.
    keep = {"resnet18": first, "resnet18-r1": np.roll(first, 20)}
    members = [_mask(c, labels, keep) for c in specs]
    assert (members[3] != members[4]).any()
    assert members[2].tolist() == keep["resnet18-r1"].tolist()
    assert len({run_variant(c) for c in specs}) == 5


def test_a_batch_is_compared_with_the_smallest_replicate() -> None:
    assert all(c.skip_reason for c in _specs(filter_replicates=2, batch_sizes=[60]))
    assert not any(c.skip_reason for c in _specs(batch_sizes=[60]))


def test_variants_are_what_seeds_repeat() -> None:
    specs = _specs(seeds=[0, 1, 2], weight_decays=[0.0, 0.1])
    variants = [run_variant(c) for c in specs]
    assert len(set(variants)) == 6
    assert all(variants.count(variant) == 3 for variant in variants)


def _result(status: Any, step: int) -> RunResult:
    finished = status == "finished"
    return RunResult(
        status=status,
        top1=0.5 if finished else None,
        balanced_accuracy=0.4 if finished else None,
        loss=1.0 if finished else None,
        history=(HistoryRecord(epoch=0.2, step=step, examples=20 * step, train_loss=1.0, lr=0.1),),
        correct=None,
        workers=2,
        hardware=("4 processes", "2 processes"),
        skipped_steps=1,
        micro_batch=7,
        critical_batch={"critical_batch": 33.0, "low": 20.0, "high": None} if finished else None,
        links=(ChainLink(step=1, sha256="aa"), ChainLink(step=step, sha256="bb")) if finished else (),
        seconds=1.0,
    )


def test_rows_have_the_contracts_columns() -> None:
    (spec, *_) = _specs()
    row = run_row("s", spec, "k", _result("finished", 2))
    assert list(row) == RUNS_SCHEMA.names
    assert HISTORY_SCHEMA.names == ["study", "fingerprint", *HistoryRecord.__dataclass_fields__]


def test_measured_values_are_those_that_were_measured() -> None:
    (spec, *_) = _specs(budget={"steps": 10})

    def measured(result: RunResult | None) -> tuple[object, ...]:
        row = run_row("s", spec, "k", result)
        return tuple(row[key] for key in ("status", "steps", "examples", "epochs", "top1", "loss"))

    assert measured(_result("finished", 10)) == ("finished", 10, 200, 2.0, 0.5, 1.0)
    assert measured(_result("diverged", 4)) == ("diverged", 4, 80, 0.8, None, None)
    assert measured(None) == ("skipped", None, None, None, None, None)


def test_hardware_and_batch_norm_groups_of_a_run_are_recorded() -> None:
    (spec, *_) = _specs({"simulated_workers": 4, "bn_group": 2}, batch_sizes=[20])
    row = run_row("s", spec, "k", _result("finished", 10))
    noise = ("critical_batch", "critical_batch_low", "critical_batch_high")
    assert [row[key] for key in noise] == [33.0, 20.0, None]
    assert {"critical_batch", "low", "high"} <= {field.name for field in dataclasses.fields(NoiseScale)}
    columns = (
        "simulated_workers",
        "bn_group",
        "workers",
        "trained_on",
        "micro_batch",
        "skipped_steps",
        "critical_batch",
    )
    assert [row[key] for key in columns] == [4, 2, 2, "4 processes; 2 processes", 7, 1, 33.0]
    skipped = run_row("s", spec, "", None)
    assert [skipped[key] for key in columns] == [4, 2, None, None, None, None, None]


def test_a_row_has_the_last_link_of_its_chain() -> None:
    (spec, *_) = _specs()
    results = _result("finished", 10), _result("diverged", 4), None
    assert [run_row("s", spec, "k", result)["chain_end"] for result in results] == ["bb", None, None]


def test_paper_figure_of_a_study_changes_no_run() -> None:
    assert _specs(paper_figure="gahlot-2020-fig7") == _specs()


def test_a_batch_size_may_have_a_separate_budget() -> None:
    specs = _specs(
        arms=["full", "random"], seeds=[0], batch_sizes=[10, 20], budget={"steps": 40},
        budget_by_batch_size={20: {"epochs": 3.0}},
    )  # fmt: skip
    assert {(c.arm, c.settings.batch_size): c.settings.steps for c in specs} == {
        ("full", 10): 40, ("random", 10): 40, ("full", 20): 15, ("random", 20): 15,
    }  # fmt: skip
