"""The formulas by hand, on equal links and on machines, and properties of all of them."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.simulator import ALL_REDUCE, Machine, NetworkLink, ring_seconds, tree_seconds
from tests.fixtures.cluster import links, machines, workers_of

SLOW = NetworkLink(latency_seconds=1e-3, bytes_per_second=1e6)
# 2 nodes of 4 GPUs: 10 us and 100 MB/s inside, 1 ms and 10 MB/s between.
SMALL = Machine(
    nodes=2,
    gpus_per_node=4,
    intra_node=NetworkLink(latency_seconds=1e-5, bytes_per_second=1e8),
    inter_node=NetworkLink(latency_seconds=1e-3, bytes_per_second=1e7),
)

algorithms = st.sampled_from(sorted(ALL_REDUCE))
sizes = st.floats(1, 1e10)


def test_ring_of_four_by_hand() -> None:
    """2 * 3 * 1 ms + 2 * 3/4 * 1 MB / (1 MB/s)."""
    assert ring_seconds(1e6, 4, SLOW) == pytest.approx(0.006 + 1.5)


@pytest.mark.parametrize(("workers", "levels"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (1024, 10)])
def test_tree_by_hand(workers: int, levels: int) -> None:
    """2 ceil(log2 p) * 1 ms + 2 * 1 MB / (1 MB/s)."""
    assert tree_seconds(1e6, workers, SLOW) == pytest.approx(2 * levels * 1e-3 + 2)


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        # 14 hops, of which 2 pass between the nodes; 2 * 7/8 of 1 MB at 10 MB/s.
        ("ring", 12 * 1e-5 + 2 * 1e-3 + 0.175),
        # A chain of three hops inside the nodes, one level between them, up and down; 2 MB at 10 MB/s.
        ("tree", 6 * 1e-5 + 2 * 1e-3 + 0.2),
        # Inside: 6 hops and 2 * 3/4 MB at 100 MB/s. Between: 2 hops, 2 * 1/2 MB at 10 MB/s.
        ("hierarchical_ring", (6e-5 + 0.015) + (2e-3 + 0.1)),
        # The same inside; between: 2 levels, 2 MB at 10 MB/s.
        ("hierarchical_tree", (6e-5 + 0.015) + (2e-3 + 0.2)),
        # Three hops and 1 MB at 100 MB/s to the leader and back; between as a ring.
        ("leader", 2 * (3e-5 + 0.01) + (2e-3 + 0.1)),
    ],
)
def test_a_megabyte_on_two_nodes_of_four_by_hand(algorithm: str, seconds: float) -> None:
    assert ALL_REDUCE[algorithm](1e6, 8, SMALL) == pytest.approx(seconds)


def test_the_longer_hops_of_a_tree_are_in_trees_alone() -> None:
    """2 ceil(log2 5) hops of 7 ms; on the machine a chain of three of 50 us and a level of 7 ms, up and down."""
    slow = replace(SLOW, tree_latency_seconds=7e-3)
    assert tree_seconds(1e6, 5, slow) == pytest.approx(6 * 7e-3 + 2)
    longer = {
        name: replace(getattr(SMALL, name), tree_latency_seconds=seconds)
        for name, seconds in (("intra_node", 5e-5), ("inter_node", 7e-3))
    }
    result = {name: ALL_REDUCE[name](1e6, 8, replace(SMALL, **longer)) for name in ALL_REDUCE}
    assert result["tree"] == pytest.approx(6 * 5e-5 + 2 * 7e-3 + 0.2)
    assert result["hierarchical_tree"] == pytest.approx((6e-5 + 0.015) + (2 * 7e-3 + 0.2))
    for name in ("ring", "hierarchical_ring", "leader"):
        assert result[name] == ALL_REDUCE[name](1e6, 8, SMALL)


def test_workers_that_leave_a_node_part_empty_are_refused() -> None:
    for workers in (6, 12, 0):
        for algorithm in ALL_REDUCE.values():
            with pytest.raises(ValueError, match=f"^{workers} workers"):
                algorithm(1e6, workers, SMALL)


@given(algorithm=algorithms, n_bytes=sizes, machine=machines)
def test_one_worker_does_not_communicate(algorithm: str, n_bytes: float, machine: Machine) -> None:
    assert ALL_REDUCE[algorithm](n_bytes, 1, machine) == 0


@given(n_bytes=sizes, machine=machines, data=st.data())
def test_on_one_node_hierarchical_is_the_ring(n_bytes: float, machine: Machine, data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, machine.gpus_per_node))
    ring = ALL_REDUCE["ring"](n_bytes, workers, machine)
    assert ring == pytest.approx(ring_seconds(n_bytes, workers, machine.intra_node))
    for algorithm in ("hierarchical_ring", "hierarchical_tree"):
        assert ALL_REDUCE[algorithm](n_bytes, workers, machine) == pytest.approx(ring)


@given(n_bytes=sizes, nodes=st.integers(2, 64), link=links)
def test_with_one_gpu_a_node_hierarchical_is_flat(n_bytes: float, nodes: int, link: NetworkLink) -> None:
    machine = Machine(nodes=nodes, gpus_per_node=1, intra_node=link, inter_node=link)
    for kind, on_links in (("ring", ring_seconds), ("tree", tree_seconds)):
        for algorithm in (kind, f"hierarchical_{kind}"):
            assert ALL_REDUCE[algorithm](n_bytes, nodes, machine) == pytest.approx(on_links(n_bytes, nodes, link))


@given(algorithm=algorithms, n_bytes=sizes, factor=st.floats(1.01, 100), machine=machines, data=st.data())
def test_time_rises_with_bytes(
    algorithm: str, n_bytes: float, factor: float, machine: Machine, data: st.DataObject
) -> None:
    workers = data.draw(st.sampled_from(workers_of(machine)))
    less, more = (ALL_REDUCE[algorithm](n, workers, machine) for n in (n_bytes, n_bytes * factor))
    assert less < more if workers > 1 else less == more == 0


@given(n_bytes=sizes, machine=machines)
def test_time_of_a_ring_rises_with_workers(n_bytes: float, machine: Machine) -> None:
    times = [ALL_REDUCE["ring"](n_bytes, workers, machine) for workers in workers_of(machine)]
    assert all(fewer < more for fewer, more in pairwise(times))


@given(n_bytes=sizes, workers=st.integers(4, 4096), link=links)
def test_a_tree_has_fewer_hops_and_a_ring_fewer_bytes(n_bytes: float, workers: int, link: NetworkLink) -> None:
    as_long = replace(link, tree_latency_seconds=None)
    assert tree_seconds(0, workers, as_long) < ring_seconds(0, workers, as_long)
    without_latency = replace(as_long, latency_seconds=0.0)
    ring, tree = (formula(n_bytes, workers, without_latency) for formula in (ring_seconds, tree_seconds))
    assert ring == pytest.approx(tree * (workers - 1) / workers)
