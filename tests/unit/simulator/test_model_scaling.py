"""Weak and strong scaling by hand, and the bounds of efficiency."""

from dataclasses import replace

import pytest
from hypothesis import given

from pipeline.simulator import CommunicationModel, Job, Machine, Negotiation, NetworkLink, strong_scaling, weak_scaling
from tests.fixtures.cluster import communications, jobs, machines, workers_of

# 100 MB take 2 (p - 1)/p * 0.1 s in a ring; a step alone takes 1 s.
MACHINE = Machine(
    nodes=1,
    gpus_per_node=4,
    intra_node=NetworkLink(latency_seconds=0.0, bytes_per_second=1e9),
    inter_node=NetworkLink(latency_seconds=0.0, bytes_per_second=1e9),
)
JOB = Job(local_batch=64, layer_bytes=(1e8,), forward_seconds=0.3, backward_seconds=(0.5,), optimizer_seconds=0.2)
RING = CommunicationModel(algorithm="ring", bucket_bytes=25e6, overlap=True, compression=1, negotiation=None)


def test_weak_scaling_by_hand() -> None:
    one, four = weak_scaling(MACHINE, JOB, RING, [1, 4])
    assert (one.global_batch, one.images_per_second, one.efficiency) == (64, 64, 1)
    assert four.global_batch == 256
    assert four.step.seconds == pytest.approx(1.15)
    assert four.images_per_second == pytest.approx(256 / 1.15)
    assert four.efficiency == pytest.approx(1 / 1.15)


def test_strong_scaling_by_hand() -> None:
    """Forward and backward shrink to a quarter, 0.2 s; the optimizer and the bytes stay."""
    one, four = strong_scaling(MACHINE, JOB, RING, [1, 4])
    assert one.efficiency == 1
    assert (four.workers, four.global_batch) == (4, 64)
    assert four.step.seconds == pytest.approx(0.2 + 0.2 + 0.15)
    assert four.efficiency == pytest.approx(1 / (4 * 0.55))


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^64 images .* 3"):
        strong_scaling(MACHINE, JOB, RING, [3])


@given(machine=machines, job=jobs(), communication=communications)
def test_efficiency_lies_in_0_to_1(machine: Machine, job: Job, communication: CommunicationModel) -> None:
    slow_start = replace(communication, negotiation=Negotiation(cycle_seconds=1e-3, message_seconds=1e-6))
    workers = workers_of(machine)
    divisible = replace(job, local_batch=720720)
    for way in (communication, slow_start):
        for point in weak_scaling(machine, job, way, workers):
            assert 0 < point.efficiency <= 1
            ideal = point.workers * job.local_batch / weak_scaling(machine, job, way, [1])[0].step.seconds
            assert point.images_per_second / ideal == pytest.approx(point.efficiency)
        for point in strong_scaling(machine, divisible, way, [count for count in workers if 720720 % count == 0]):
            assert 0 < point.efficiency <= 1 + 1e-12  # the shares of the times are rounded
