"""The page of a running study: its curves lie inside their pictures."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.live.page import LiveState, live_page


def _state(curve: list[tuple[int, float]]) -> LiveState:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    return LiveState(study="digits", run="full", ended=0, runs=2, left="", curves={"loss": curve}, updated=now)


@settings(max_examples=50, deadline=None)
@given(
    steps=st.lists(st.integers(0, 10**6), min_size=1, max_size=20, unique=True).map(sorted),
    low=st.floats(-1e6, 1e6),
    spread=st.floats(0, 1e6),
)
def test_every_point_is_inside(steps: list[int], low: float, spread: float) -> None:
    curve = [(step, low + spread * (number % 2)) for number, step in enumerate(steps)]
    page = live_page(_state(curve))
    (points,) = re.findall(r'polyline points="([^"]+)"', page)
    places = [tuple(map(float, pair.split(","))) for pair in points.split()]
    assert len(places) == len(curve)
    assert all(0 <= x <= 640 and 0 <= y <= 200 for x, y in places)
    assert [x for x, _ in places] == sorted(x for x, _ in places)


@pytest.mark.parametrize("curve", [[], [(1, 0.5)]])
def test_a_run_without_records_has_no_curve(curve: list[tuple[int, float]]) -> None:
    assert live_page(_state(curve)).count("<svg") == len(curve)
