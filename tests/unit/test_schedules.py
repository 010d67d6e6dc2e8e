"""Every schedule of the registry against its bounds, and those that torch has against torch."""

import inspect
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.schedules import (
    SCHEDULES,
    apply_warmup,
    constant,
    cosine,
    one_cycle,
    polynomial,
    scaled_rate,
    scaled_warmup,
    step_decay,
)

_SCHEDULES = pytest.mark.parametrize("name", SCHEDULES)
# Values of the options of schedules, by name.
_OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "milestones": st.lists(st.integers(1, 300), min_size=1, max_size=5),
    "factor": st.floats(0.01, 0.99),
    "power": st.floats(0.1, 4),
    "rise": st.floats(0.01, 0.99),
    "initial_factor": st.floats(0, 0.99),
}
# These contain a warm-up; the others start at the peak.
_RISING = {"one_cycle"}


def _draw_options(data: st.DataObject, name: str) -> dict[str, Any]:
    taken = list(inspect.signature(SCHEDULES[name]).parameters)[2:]
    return {option: data.draw(_OPTIONS[option], label=option) for option in taken}


@_SCHEDULES
@given(data=st.data(), total=st.integers(1, 300))
def test_factors_fall_from_the_peak(name: str, data: st.DataObject, total: int) -> None:
    options = _draw_options(data, name)
    factors = [SCHEDULES[name](step, total, **options) for step in range(total)]
    peak = factors.index(max(factors)) if name in _RISING else 0
    assert factors[peak] == 1 if name not in _RISING else factors[peak] <= 1
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert all(earlier >= later > 0 for earlier, later in itertools.pairwise(factors[peak:]))


@_SCHEDULES
@given(data=st.data(), total=st.integers(1, 300))
def test_steps_outside_the_run_are_bugs(name: str, data: st.DataObject, total: int) -> None:
    options = _draw_options(data, name)
    for step in (-1, total):
        with pytest.raises(AssertionError):
            SCHEDULES[name](step, total, **options)


def _of_torch(make: Any, total: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("total", [1, 2, 7, 100])
def test_cosine_is_that_of_torch(total: int) -> None:
    expected = _of_torch(lambda opt: torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=total), total)
    assert [cosine(step, total) for step in range(total)] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("milestones", [[3], [2, 5], [5, 2], [4, 4]])
def test_step_decay_is_that_of_torch(milestones: list[int]) -> None:
    expected = _of_torch(lambda opt: torch.optim.lr_scheduler.MultiStepLR(opt, milestones, gamma=0.1), 8)
    assert [step_decay(step, 8, milestones=milestones, factor=0.1) for step in range(8)] == pytest.approx(expected)


@pytest.mark.parametrize("power", [0.5, 1, 2])
def test_polynomial_is_that_of_torch(power: float) -> None:
    expected = _of_torch(lambda opt: torch.optim.lr_scheduler.PolynomialLR(opt, 7, power=power), 7)
    assert [polynomial(step, 7, power=power) for step in range(7)] == pytest.approx(expected)


def test_one_cycle_by_hand() -> None:
    factors = [one_cycle(step, 10, rise=0.4, initial_factor=0.2) for step in range(10)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def test_legw_by_hand() -> None:
    """You et al. 2019, section 3: k times the batch takes sqrt(k) times the rate and k times the warm-up epochs."""
    assert scaled_rate(0.1, 4096, rule="legw", reference_batch_size=1024) == pytest.approx(0.2)
    assert scaled_warmup(0.5, 4096, rule="legw", reference_batch_size=1024) == 2.0
    assert scaled_warmup(0.5, 4096, rule="linear", reference_batch_size=1024) == 0.5


def test_reference_values() -> None:
    assert [cosine(step, 4) for step in range(4)] == pytest.approx([1, 0.853553, 0.5, 0.146447], abs=1e-6)
    assert [step_decay(step, 4, milestones=[1, 3], factor=0.5) for step in range(4)] == [1, 0.5, 0.5, 0.25]
    assert [constant(step, 3) for step in range(3)] == [1, 1, 1]


def test_warm_up_by_hand() -> None:
    assert [apply_warmup(1.0, step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert [apply_warmup(0.5, step, 2) for step in range(3)] == [0.25, 0.5, 0.5]
    assert apply_warmup(0.7, 0, 0) == 0.7


@given(factor=st.floats(0, 1), warmup=st.integers(0, 50))
def test_warm_up_rises_evenly_to_the_factor(factor: float, warmup: int) -> None:
    factors = [apply_warmup(factor, step, warmup) for step in range(warmup + 2)]
    assert factors == sorted(factors)
    assert factors[warmup:] == [factor, factor]
    if warmup:
        assert factors[0] == pytest.approx(factor / warmup)
        assert factors[warmup - 1] == factor


@pytest.mark.parametrize("start_factor", [0.05, 0.5, 1.0])
@pytest.mark.parametrize("warmup", [1, 2, 7])
def test_warm_up_from_a_start_factor_is_that_of_torch(start_factor: float, warmup: int) -> None:
    expected = _of_torch(
        lambda opt: torch.optim.lr_scheduler.LinearLR(opt, start_factor, total_iters=warmup), warmup + 3
    )
    got = [apply_warmup(1.0, step, warmup, start_factor=start_factor) for step in range(warmup + 3)]
    assert got == pytest.approx(expected)
    assert (got[0], got[warmup]) == (start_factor, 1.0)


@given(lengths=st.lists(st.floats(0.01, 1), min_size=1, max_size=30), start=st.none() | st.floats(0.01, 1))
def test_warm_up_over_steps_of_different_lengths_never_falls(lengths: list[float], start: float | None) -> None:
    """Steps of small batches raise the factor less."""
    before = [0.0, *itertools.accumulate(lengths)]
    factors = [
        apply_warmup(1.0, step, before[-1], start_factor=start, length=length)
        for step, length in zip(before, [*lengths, 1.0], strict=True)
    ]
    assert all(earlier <= later + 1e-12 for earlier, later in itertools.pairwise(factors))
    assert factors[-1] == 1


def test_scaling_by_hand() -> None:
    def scaled(rule: Any) -> float:
        return scaled_rate(0.1, 1024, rule=rule, reference_batch_size=256)

    assert scaled("linear") == pytest.approx(0.4)
    assert scaled("sqrt") == pytest.approx(0.2)
    assert scaled(None) == 0.1
    assert scaled_rate(0.1, 8, rule="linear") == pytest.approx(0.8)


@given(rate=st.floats(1e-6, 10), batch=st.integers(1, 40_000), reference=st.integers(1, 40_000))
def test_scaling_keeps_the_rate_of_the_reference_batch(rate: float, batch: int, reference: int) -> None:
    assert scaled_rate(rate, reference, rule="linear", reference_batch_size=reference) == rate
    assert scaled_rate(rate, reference, rule="sqrt", reference_batch_size=reference) == rate
    linear = scaled_rate(rate, batch, rule="linear", reference_batch_size=reference)
    root = scaled_rate(rate, batch, rule="sqrt", reference_batch_size=reference)
    assert root == pytest.approx(math.sqrt(linear * rate))
