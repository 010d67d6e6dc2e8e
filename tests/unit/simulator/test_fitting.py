"""Constants of a link from measurements: those of the model are recovered, and the error is reported."""

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.simulator import AllReduceTiming, NetworkLink, fit, ring_seconds, tree_seconds
from tests.fixtures.cluster import links

Kind = Literal["ring", "tree"]
FORMULA = {"ring": ring_seconds, "tree": tree_seconds}
kinds: st.SearchStrategy[Kind] = st.sampled_from(["ring", "tree"])


def _hop(kind: Kind, link: NetworkLink) -> float:
    return link.latency_seconds if kind == "ring" else link.tree_hop_seconds


def _measured(kind: Kind, link: NetworkLink, noise: float = 0.0) -> list[AllReduceTiming]:
    """Around the size whose bytes take as long as the latency, so that both constants show."""
    rng = np.random.default_rng(0)
    middle = _hop(kind, link) * link.bytes_per_second
    return [
        AllReduceTiming(n_bytes, workers, FORMULA[kind](n_bytes, workers, link) * float(np.exp(noise * rng.normal())))
        for workers in (2, 4, 8, 16)
        for n_bytes in (0.01 * middle, middle, 100 * middle)
    ]


@given(kind=kinds, link=links)
def test_a_models_own_points_are_recovered(kind: Kind, link: NetworkLink) -> None:
    result = fit(_measured(kind, link), kind)
    assert result.link.latency_seconds == pytest.approx(_hop(kind, link), rel=1e-6)
    assert result.link.bytes_per_second == pytest.approx(link.bytes_per_second, rel=1e-6)
    assert result.relative_error < 1e-6
    assert result.held_out_error < 1e-6


@given(kind=kinds, link=links)
def test_noise_of_5_percent_moves_the_constants_by_about_as_much(kind: Kind, link: NetworkLink) -> None:
    result = fit(_measured(kind, link, noise=0.05), kind)
    assert result.link.latency_seconds == pytest.approx(_hop(kind, link), rel=0.1)
    assert result.link.bytes_per_second == pytest.approx(link.bytes_per_second, rel=0.1)
    assert 0.02 < result.relative_error <= result.held_out_error < 0.1


def test_deviations_from_the_model_show_in_the_held_out_error() -> None:
    """Times of a tree hardly depend on the workers; as a ring they do not predict the largest number."""
    link = NetworkLink(latency_seconds=1e-4, bytes_per_second=1e9)
    measured = _measured("tree", link)
    as_a_ring = fit(measured, "ring")
    assert as_a_ring.held_out_error > max(0.2, 1.1 * as_a_ring.relative_error)
    assert fit(measured, "tree").held_out_error < 1e-6


def test_links_without_latency_are_found() -> None:
    link = NetworkLink(latency_seconds=0.0, bytes_per_second=1e9)
    points = [AllReduceTiming(n, p, ring_seconds(n, p, link)) for p in (2, 4) for n in (1e6, 1e8)]
    result = fit(points, "ring").link
    assert result.latency_seconds == pytest.approx(0, abs=1e-12)
    assert result.bytes_per_second == pytest.approx(1e9)


def test_two_workers_are_enough_where_sizes_are_held_out() -> None:
    link = NetworkLink(latency_seconds=1e-4, bytes_per_second=1e9)
    points = [AllReduceTiming(n, 2, ring_seconds(n, 2, link)) for n in (1e4, 1e6, 1e8)]
    result = fit(points, "ring", hold_out="n_bytes")
    assert result.link.bytes_per_second == pytest.approx(1e9)
    assert result.held_out_error < 1e-6
    with pytest.raises(ValueError):  # noqa: PT011 - fit raises no other
        fit(points[:2], "ring", hold_out="n_bytes")


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([AllReduceTiming(1e6, 4, 0.1), AllReduceTiming(1e8, 4, 1.0)], id="one number of workers"),
        pytest.param([AllReduceTiming(1e6, 2, 0.1), AllReduceTiming(1e6, 4, 0.2)], id="one size"),
        pytest.param(
            [AllReduceTiming(n, p, 0.1 * (p - 1)) for p in (2, 4) for n in (4.0, 8.0, 1e9)], id="times that do not grow"
        ),
    ],
)
def test_points_that_determine_nothing_are_refused(points: list[AllReduceTiming]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - fit raises no other
        fit(points, "ring")
