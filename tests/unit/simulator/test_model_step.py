"""One step by hand, with and without overlap, buckets and negotiation, and properties of any step."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.simulator import CommunicationModel, Job, Machine, Negotiation, NetworkLink, simulate_step
from pipeline.simulator.model import bucketed, negotiated
from tests.fixtures.cluster import communications, jobs, machines, workers_of

# Two workers on a link without latency: an all-reduce of n bytes takes n / (1 MB/s) in a ring.
PAIR = Machine(
    nodes=1,
    gpus_per_node=2,
    intra_node=NetworkLink(latency_seconds=0.0, bytes_per_second=1e6),
    inter_node=NetworkLink(latency_seconds=0.0, bytes_per_second=1e6),
)
# Forward until 1 s; gradients at 2, 3 and 4 s, which take 0.5, 2 and 0.25 s to reduce.
THREE_LAYERS = Job(
    local_batch=32,
    layer_bytes=(0.5e6, 2e6, 0.25e6),
    forward_seconds=1.0,
    backward_seconds=(1.0, 1.0, 1.0),
    optimizer_seconds=0.5,
)
# Every layer is a separate message.
PLAIN = CommunicationModel(algorithm="ring", bucket_bytes=1, overlap=True, compression=1, negotiation=None)


def _exposed(communication: CommunicationModel) -> float:
    step = simulate_step(PAIR, THREE_LAYERS, communication, 2)
    assert step.compute_seconds == 4.5
    return step.exposed_seconds


def test_messages_queue_behind_one_another() -> None:
    """The first goes from 2 to 2.5 s, the second from 3 to 5 s, the third waits and ends at 5.25 s."""
    assert _exposed(PLAIN) == pytest.approx(1.25)


def test_without_overlap_everything_comes_after_the_backward_pass() -> None:
    assert _exposed(replace(PLAIN, overlap=False)) == pytest.approx(2.75)


def test_a_bucket_waits_for_its_last_layer() -> None:
    """Layers 1 and 2 share a bucket, 3 to 5.5 s; layer 3 has what is left, 5.5 to 5.75 s."""
    assert _exposed(replace(PLAIN, bucket_bytes=1e6)) == pytest.approx(1.75)


def test_compression_divides_the_bytes_sent() -> None:
    """2 to 2.25 s, 3 to 4 s, 4 to 4.125 s."""
    assert _exposed(replace(PLAIN, compression=2)) == pytest.approx(0.125)


def test_gradients_wait_for_the_next_round() -> None:
    """Rounds at 0, 1.5, 3, 4.5 s take 2 * 1 * 0.1 s: the first two layers go at 3.2 s for 2.5 s, the third after."""
    negotiation = Negotiation(cycle_seconds=1.5, message_seconds=0.1)
    horovod = replace(PLAIN, bucket_bytes=64e6, negotiation=negotiation)
    assert _exposed(horovod) == pytest.approx(3.2 + 2.5 + 0.25 - 4)
    # All are ready at 4 s, and are requested at 4.5 s.
    assert _exposed(replace(horovod, overlap=False)) == pytest.approx(4.7 + 2.75 - 4)


@pytest.mark.parametrize(
    ("most", "fused"),
    [(1, [4.0, 6.0, 2.0, 8.0]), (8, [4.0, 8.0, 8.0]), (10, [10.0, 10.0]), (12, [12.0, 8.0]), (20, [20.0])],
)
def test_buffers_of_a_round_hold_as_many_layers_as_fit(most: float, fused: list[float]) -> None:
    negotiation = Negotiation(cycle_seconds=1.0, message_seconds=0.0)
    messages = negotiated([4.0, 6.0, 0.0, 2.0, 8.0], [0.2, 0.4, 0.6, 0.8, 1.0], most, negotiation, workers=2)
    assert [message.n_bytes for message in messages] == fused
    assert {message.ready_seconds for message in messages} == {1.0}


def test_rounds_longer_than_the_cycle_follow_one_another() -> None:
    """Rounds of 1.2 s begin at 2.4, 3.6 and 4.8 s for the three layers: ends at 4.1, 6.8 and 7.05 s."""
    negotiation = Negotiation(cycle_seconds=0.001, message_seconds=0.6)
    assert _exposed(replace(PLAIN, negotiation=negotiation)) == pytest.approx(7.05 - 4)


def test_negotiation_costs_more_the_more_workers_there_are() -> None:
    """With messages too small to matter, what is exposed is the wait for the round and the round itself."""
    machine = replace(PAIR, nodes=512)
    job = replace(THREE_LAYERS, layer_bytes=(4.0, 4.0, 4.0))
    negotiation = Negotiation(cycle_seconds=0.1, message_seconds=1e-4)
    horovod = replace(PLAIN, algorithm="tree", bucket_bytes=64e6, negotiation=negotiation)
    exposed = [simulate_step(machine, job, horovod, workers).exposed_seconds for workers in (2, 32, 256)]
    assert exposed == pytest.approx([2 * 1e-4, 2 * 31e-4, 2 * 255e-4], abs=1e-4)


def test_one_worker_only_computes() -> None:
    step = simulate_step(
        PAIR, THREE_LAYERS, replace(PLAIN, negotiation=Negotiation(cycle_seconds=1, message_seconds=1)), 1
    )
    assert (step.seconds, step.all_reduce_seconds, step.exposed_seconds) == (4.5, 0, 0)


def test_a_small_first_bucket_leaves_early() -> None:
    """Layer 1 from 2 to 2.5 s; layers 2 and 3 from 4 to 6.25 s, where all three in one would end at 6.75 s."""
    assert _exposed(replace(PLAIN, bucket_bytes=2.25e6, first_bucket_bytes=0.5e6)) == pytest.approx(2.25)
    assert _exposed(replace(PLAIN, bucket_bytes=2.75e6)) == pytest.approx(2.75)


@given(job=jobs(), bucket_bytes=st.floats(1e3, 1e9), first_bucket_bytes=st.floats(1e3, 1e9))
def test_buckets_hold_every_byte_in_order(job: Job, bucket_bytes: float, first_bucket_bytes: float) -> None:
    buckets = bucketed(job.layer_bytes, job.ready_seconds, bucket_bytes, first_bucket_bytes)
    assert sum(bucket.n_bytes for bucket in buckets) == pytest.approx(sum(job.layer_bytes))
    assert all(bucket.n_bytes >= first_bucket_bytes for bucket in buckets[:-1][:1])
    assert all(bucket.n_bytes >= bucket_bytes for bucket in buckets[1:-1])
    ready = [bucket.ready_seconds for bucket in buckets]
    assert ready == sorted(ready)
    assert set(ready) <= set(job.ready_seconds)


@given(machine=machines, job=jobs(), communication=communications, data=st.data())
def test_overlap_never_makes_a_step_longer(
    machine: Machine, job: Job, communication: CommunicationModel, data: st.DataObject
) -> None:
    """In buckets that are fixed beforehand. Negotiated ones can become more and smaller."""
    workers = data.draw(st.sampled_from(workers_of(machine)))
    peer, after = (
        simulate_step(machine, job, replace(communication, overlap=overlap), workers) for overlap in (True, False)
    )
    assert peer.all_reduce_seconds == after.all_reduce_seconds
    assert peer.seconds <= after.seconds * (1 + 1e-12)
    assert after.exposed_seconds == pytest.approx(after.all_reduce_seconds, abs=1e-9)
    # At best all is hidden behind the backward pass.
    assert peer.exposed_seconds >= peer.all_reduce_seconds - sum(job.backward_seconds) - 1e-9


@given(machine=machines, job=jobs(), communication=communications, data=st.data())
def test_compression_never_makes_a_step_longer(
    machine: Machine, job: Job, communication: CommunicationModel, data: st.DataObject
) -> None:
    workers = data.draw(st.sampled_from(workers_of(machine)))
    full, half = (
        simulate_step(machine, job, replace(communication, compression=factor), workers) for factor in (1.0, 2.0)
    )
    assert half.seconds <= full.seconds
