"""Machines, jobs and ways to communicate for the tests of the cost model."""

from hypothesis import strategies as st

from pipeline.costmodel import ALL_REDUCE, Communication, Job, Link, Machine

# Times from microseconds to seconds and bytes from one float to a gigabyte; 0 where a layer has no parameters.
_seconds = st.floats(1e-6, 1.0)
_bytes = st.floats(4.0, 1e9)
links = st.builds(
    Link,
    latency_seconds=st.floats(1e-7, 1e-3),
    bytes_per_second=st.floats(1e8, 1e12),
    tree_latency_seconds=st.none() | st.floats(1e-7, 1e-3),
)
machines = st.builds(
    Machine, nodes=st.integers(1, 16), gpus_per_node=st.sampled_from([1, 2, 3, 4, 6, 8]), inside=links, between=links
)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    layers = draw(st.integers(1, 8))
    return Job(
        local_batch=draw(st.integers(1, 512)),
        layer_bytes=tuple(draw(st.lists(st.just(0.0) | _bytes, min_size=layers, max_size=layers))),
        forward_seconds=draw(_seconds),
        backward_seconds=tuple(draw(st.lists(_seconds, min_size=layers, max_size=layers))),
        optimizer_seconds=draw(st.just(0.0) | _seconds),
    )


def workers_of(machine: Machine) -> list[int]:
    """Every number of workers that fits."""
    part_of_a_node = range(1, machine.gpus_per_node + 1)
    return [*part_of_a_node, *(machine.gpus_per_node * nodes for nodes in range(2, machine.nodes + 1))]


communications = st.builds(
    Communication,
    algorithm=st.sampled_from(sorted(ALL_REDUCE)),
    bucket_bytes=st.floats(1e3, 1e9),
    overlap=st.booleans(),
    compression=st.sampled_from([1.0, 2.0, 4.0]),
    negotiation=st.none(),
)
