"""Parts of a step's time: by hand, properties for any times, and undecided cases."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.commands.diagnose.bottleneck import THRESHOLD, StepTimes, diagnose, estimate
from tests.fixtures.times import made_up_times

seconds = st.floats(1e-4, 10.0)
overheads = st.floats(0.0, 10.0)


def _noisy(times: StepTimes, spread: float, seed: int) -> StepTimes:
    """Each round multiplied by its own luck, for each way to train."""
    rng = np.random.default_rng(seed)

    def disturbed(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values * np.exp(spread * rng.normal(size=(len(values), 1, 1)))

    return StepTimes(
        full=disturbed(times.full), local=disturbed(times.local), synthetic=disturbed(times.synthetic)
    )  # fmt: skip


def test_parts_by_hand() -> None:
    result = diagnose(made_up_times(0.1, input=0.03, slow_rank=0.05, communication=0.02))
    assert {name: round(part.median, 9) for name, part in result.parts.items()} == {
        "compute": 0.1,
        "input": 0.03,
        "synchronization": 0.05,
        "communication": 0.02,
    }
    assert result.step.median == pytest.approx(0.2)
    assert result.shares["synchronization"].median == pytest.approx(0.25)
    assert result.candidates == ("synchronization",)


@pytest.mark.parametrize("part", ["input", "slow_rank", "communication"])
@pytest.mark.parametrize(("seconds", "bound"), [(0.0, False), (0.009, False), (0.02, True), (0.5, True)])
def test_a_part_of_a_tenth_or_more_bounds_the_step(part: str, seconds: float, bound: bool) -> None:
    """0.009 of 0.109 s are 8 %, 0.02 of 0.12 s are 17 %."""
    overhead: Any = {part: seconds}
    result = diagnose(made_up_times(0.1, **overhead))
    name = {"slow_rank": "synchronization"}.get(part, part)
    assert result.candidates == ((name,) if bound else ("compute",))


@given(compute=seconds, reading=overheads, slow=overheads, exchange=overheads)
def test_parts_add_up_and_the_largest_overhead_is_the_verdict(
    compute: float, reading: float, slow: float, exchange: float
) -> None:
    result = diagnose(made_up_times(compute, input=reading, slow_rank=slow, communication=exchange))
    assert sum(part.median for part in result.parts.values()) == pytest.approx(result.step.median)
    assert sum(share.median for share in result.shares.values()) == pytest.approx(1)
    rest = {name: share.median for name, share in result.shares.items() if name != "compute"}
    largest = max(rest, key=lambda name: rest[name])
    ordered = sorted(rest.values())
    if ordered[-1] - ordered[-2] > 1e-6 and abs(ordered[-1] - THRESHOLD) > 1e-6:
        assert result.candidates == ((largest,) if rest[largest] > THRESHOLD else ("compute",))


@given(factor=st.floats(1e-3, 1e3), reading=overheads, exchange=overheads)
def test_the_unit_of_time_does_not_matter(factor: float, reading: float, exchange: float) -> None:
    result, scaled = (
        diagnose(made_up_times(unit, input=unit * reading, communication=unit * exchange)) for unit in (1.0, factor)
    )
    for name, share in result.shares.items():
        assert scaled.shares[name].median == pytest.approx(share.median, abs=1e-9)


@given(order=st.permutations(range(4)), slow=overheads)
def test_names_of_ranks_do_not_matter(order: list[int], slow: float) -> None:
    times = made_up_times(0.1, slow_rank=slow, shape=(8, 4, 3))
    permuted = StepTimes(full=times.full[:, order], local=times.local[:, order], synthetic=times.synthetic[:, order])
    assert diagnose(permuted) == diagnose(times)


@pytest.mark.parametrize("way", ["full", "local"])
def test_what_is_paid_at_every_fourth_step_alone_is_seen(way: str) -> None:
    """Of 0.1 s steps each fourth takes 1 s longer, in the mean 0.25 s: 71 % of a step."""
    late = np.full((8, 2, 12), 0.1)
    late[..., ::4] += 1.0
    even = np.full_like(late, 0.1)
    result = diagnose(StepTimes(full=late, local=late if way == "local" else even, synthetic=even))
    part = {"full": "communication", "local": "input"}[way]
    assert result.candidates == (part,)
    assert result.shares[part].median == pytest.approx(0.25 / 0.35)
    assert result.step.median == pytest.approx(0.35)


def test_ranks_that_are_slow_in_turn_are_waited_for() -> None:
    """Each is fast on average; at every step another one is late by 0.1 s."""
    local = np.full((8, 2, 6), 0.1)
    local[:, 0, ::2] += 0.1
    local[:, 1, 1::2] += 0.1
    synthetic, full = np.minimum(local, 0.15), np.full_like(local, 0.2)
    assert diagnose(StepTimes(full=full, local=local, synthetic=synthetic)).candidates[0] == "synchronization"


def test_one_process_has_neither_communication_nor_waiting() -> None:
    times = made_up_times(0.1, input=0.2, shape=(8, 1, 5))
    result = diagnose(times)
    assert result.candidates == ("input",)
    assert result.shares["communication"].median == result.shares["synchronization"].median == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("communication", "spread", "right"), [(0.0, 0.1, "compute"), (0.05, 0.1, "communication"), (0.0, 0.005, "compute")]
)
def test_noise_leaves_a_verdict_undecided_rather_than_wrong(communication: float, spread: float, right: str) -> None:
    result = [diagnose(_noisy(made_up_times(0.1, communication=communication), spread, seed)) for seed in range(200)]
    wrong = [one.candidates for one in result if one.decided and one.candidates != (right,)]
    assert len(wrong) <= 0.1 * len(result)
    assert all(one.decided for one in result) == (spread < 0.01)


@pytest.mark.parametrize(("n", "low", "high"), [(1, 0, 0), (3, 0, 2), (5, 0, 4), (8, 1, 6), (20, 5, 14)])
def test_intervals_of_the_median_are_those_of_the_tables(n: int, low: int, high: int) -> None:
    """From 8 values on outliers are left out; of 20 the 6th and the 15th cover 95.9 %, the 7th and 14th 88.5 %."""
    values = np.random.default_rng(0).permutation(n).astype(np.float64)
    result = estimate(values)
    assert (result.low, result.high) == (low, high)
    assert result.low <= result.median <= result.high


@pytest.mark.slow
@pytest.mark.parametrize("n", [8, 5, 12])
def test_intervals_cover_the_median_as_often_as_they_say(n: int) -> None:
    rng = np.random.default_rng(1)
    draws = rng.exponential(size=(4000, n))
    covered = np.mean([result.low <= np.log(2) <= result.high for result in map(estimate, draws)])
    assert covered >= 0.9 - 0.015


@pytest.mark.parametrize(
    ("values", "has_sign"),
    [([0.1] * 8, True), ([-0.1] * 8, True), ([0.0] * 8, True), ([-0.1] * 3 + [0.1] * 5, False), ([0, 0, 0.1], False)],
)
def test_a_difference_has_a_sign_where_its_interval_lacks_0(values: list[float], has_sign: bool) -> None:
    assert estimate(np.array(values)).has_sign == has_sign


@pytest.mark.slow
def test_noise_seldom_has_a_sign_and_a_long_exchange_always_does() -> None:
    """An interval of 90 % or more lacks a true 0 in at most a tenth of all cases."""
    signs = {
        communication: [
            diagnose(_noisy(made_up_times(0.1, communication=communication), 0.02, seed))
            .shares["communication"]
            .has_sign
            for seed in range(200)
        ]
        for communication in (0.0, 0.1)
    }
    assert np.mean(signs[0.0]) <= 0.1
    assert all(signs[0.1])
