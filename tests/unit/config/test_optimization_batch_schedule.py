"""`batch_schedule` and the start of the warm-up: what is accepted, and the one line that refuses the rest."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.optimization import BatchSchedule
from pipeline.config.params import Params, check_params
from pipeline.errors import InputError
from tests.fixtures.params import digits_tree
from tests.fixtures.printed_errors import key_within


def _stages(*pairs: tuple[float, dict[str, Any]]) -> dict[str, Any]:
    return {"stages": [{"share": share, "until": until} for share, until in pairs]}


def _checked(train: dict[str, Any], **study: Any) -> Params:
    tree = digits_tree()
    tree["train"] |= train
    tree["studies"]["digits"] |= {"batch_sizes": [64], "budget": {"epochs": 4}, **study}
    return check_params(tree, source="p")


_RAMP = _stages((0.25, {"epochs": 1}), (0.5, {"epochs": 2}))


def test_one_schedule_serves_all_sizes() -> None:
    params = _checked({"batch_schedule": _RAMP, "simulated_workers": 8}, batch_sizes=[64, 6272, 20480])
    assert params.train.batch_schedule is not None
    assert [params.train.batch_schedule.sizes(size) for size in (64, 6272, 20480)] == [
        (16, 32), (1568, 3136), (5120, 10240),
    ]  # fmt: skip


def test_a_study_may_do_without_it() -> None:
    params = _checked({"batch_schedule": _RAMP}, recipe={"batch_schedule": None})
    assert params.studies["digits"].effective_recipe(params.train).batch_schedule is None


@pytest.mark.parametrize(
    ("schedule", "keys"),
    [
        (_stages(), "p: train.batch_schedule.stages"),
        (_stages((1.0, {"epochs": 1})), "p: train.batch_schedule.stages.0.share"),
        (_stages((0.5, {"epochs": 0})), "p: train.batch_schedule.stages.0.until"),
        (
            _stages((0.5, {"epochs": 1}), (0.25, {"epochs": 2})),
            "p: train.batch_schedule: stages.1.share",
        ),
        (
            _stages((0.25, {"epochs": 1}), (0.5, {"epochs": 1})),
            "p: train.batch_schedule: stages.1.until",
        ),
        (
            _stages((0.3, {"epochs": 1})),
            "p: train.batch_schedule.stages.0.share",
        ),
        (
            _stages((0.125, {"epochs": 1})),
            "p: train.batch_schedule.stages.0.share",
        ),
        (
            _stages((0.25, {"epochs": 4})),
            "p: train.batch_schedule",
        ),
        ({**_RAMP, "lr_scaling": "legw"}, "p: train.batch_schedule.lr_scaling"),
        ({**_RAMP, "stage": []}, "p: train.batch_schedule.stage"),
    ],
)
def test_what_does_not_work_is_refused_in_one_line(schedule: dict[str, Any], keys: str) -> None:
    with pytest.raises(InputError) as refused:
        _checked({"batch_schedule": schedule, "simulated_workers": 8})
    assert str(refused.value).startswith(f"{keys}: ")
    assert "\n" not in str(refused.value)


def test_smaller_batches_need_whole_batch_norm_groups_too() -> None:
    with pytest.raises(InputError) as raised:
        _checked({"batch_schedule": _RAMP, "simulated_workers": 4, "bn_group": 8})
    assert key_within(raised.value, "p") == "train.batch_schedule.stages.0.share"


def test_the_extractors_batch_may_grow_too() -> None:
    tree = digits_tree()
    tree["finetune"]["batch_schedule"] = _stages((0.3, {"epochs": 1}))
    with pytest.raises(InputError) as raised:
        check_params(tree, source="p")
    assert key_within(raised.value, "p") == "finetune.batch_schedule.stages.0.share"


@given(parts=st.integers(2, 64), batch=st.integers(1, 1000))
def test_shares_that_cannot_be_written_exactly_are_found(parts: int, batch: int) -> None:
    schedule = BatchSchedule.model_validate_json(f'{{"stages": [{{"share": {1 / parts}, "until": {{"steps": 1}}}}]}}')
    assert schedule.sizes(parts * batch) == (batch,)


# Where a warm-up starts


@pytest.mark.parametrize("start", [0.1, 1.0, 1, None])
def test_a_warm_up_may_start_from_a_share_of_the_peak(start: float | None) -> None:
    params = _checked({"schedule": {"name": "cosine", "warmup": {"epochs": 1}, "warmup_start_factor": start}})
    assert params.train.schedule.name == "cosine"
    assert params.train.schedule.warmup_start_factor == start


@pytest.mark.parametrize("start", [0, 1.5, "peak"])
def test_other_starts_are_refused(start: Any) -> None:
    with pytest.raises(InputError) as raised:
        _checked({"schedule": {"name": "cosine", "warmup": {"epochs": 1}, "warmup_start_factor": start}})
    assert key_within(raised.value, "p") == "train.schedule.warmup_start_factor"


def test_the_reference_rate_needs_a_reference() -> None:
    train: dict[str, Any] = {"schedule": {"name": "cosine", "warmup_start_factor": "reference"}}
    with pytest.raises(InputError) as raised:
        _checked({**train, "lr_scaling": None})
    assert key_within(raised.value, "p: train") == "schedule.warmup_start_factor"
    _checked({**train, "lr_scaling": {"rule": "linear", "reference_batch_size": 256}})


def test_one_cycle_has_a_start_of_its_own() -> None:
    with pytest.raises(InputError) as raised:
        _checked({"schedule": {"name": "one_cycle", "warmup_start_factor": 0.1}})
    assert key_within(raised.value, "p") == "train.schedule.warmup_start_factor"
