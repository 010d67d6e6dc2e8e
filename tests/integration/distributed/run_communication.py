"""Run one rank of tiny runs that exchange gradients in every way; tests start it with torchrun or alone.

Command line: the file to save to, then the groups: `nodes` (runs of four simulated workers), `uneven` (those of nodes
of different sizes), `pair` (of two), `alone` (of two, on one rank), or `exchanges` (of made-up gradients, without
training).
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from pipeline import distributed
from pipeline.distributed import CommConfig, Compression, World
from pipeline.distributed.compression import FlatGradient
from tests.integration.distributed.run_steps import RESNET, SEVERAL, StepCase, first_weights, run

TRANSPORTS: dict[str, CommConfig | None] = {
    "default": None,
    "explicit": CommConfig(),
    "small buckets": CommConfig(bucket_mib=0.01),
    "a large bucket": CommConfig(bucket_mib=1000),
    "one message": CommConfig(overlap=False),
    "by node": CommConfig(hierarchical=True),
    "by node in small buckets": CommConfig(hierarchical=True, bucket_mib=0.01),
    "by node in one message": CommConfig(hierarchical=True, overlap=False),
}
if find_spec("horovod"):  # built by hand
    TRANSPORTS["horovod"] = CommConfig(library="horovod")
WITH_RESNET = ("default", "small buckets", "by node in small buckets", "horovod")
_AFTER = CommConfig(overlap=False)
_BY_NODE_AFTER = CommConfig(overlap=False, hierarchical=True)
_LOW_RANK: dict[str, Any] = {"compression": "powersgd", "powersgd_rank": 1}
_LONG = replace(SEVERAL, steps=25, ema_decay=None)


def _dense(workers: int) -> Iterator[tuple[str, StepCase]]:
    for name, comm in TRANSPORTS.items():
        several, one = (replace(settings, simulated_workers=workers) for settings in (SEVERAL, RESNET))
        yield f"small_cnn {name}", StepCase(settings=several, comm=comm)
        if name in WITH_RESNET:
            yield f"resnet18 {name}", StepCase(settings=one, comm=comm)
    # Two workers on each rank, in separate forward passes.
    two_each = replace(SEVERAL, simulated_workers=2 * workers)
    yield "small_cnn passes", StepCase(settings=two_each, comm=_AFTER, micro_batch=36 // workers)
    if "horovod" in TRANSPORTS:
        passes = StepCase(settings=two_each, comm=TRANSPORTS["horovod"], micro_batch=36 // workers)
        yield "small_cnn horovod passes", passes


def _compressed(workers: int) -> Iterator[tuple[str, StepCase]]:
    several, long = (replace(settings, simulated_workers=workers) for settings in (SEVERAL, _LONG))
    for kind in ("bf16", "fp16"):
        half = replace(several, compression=kind)
        yield kind, StepCase(settings=half)
        yield f"{kind} one message", StepCase(settings=half, comm=_AFTER)
    yield "bf16 interrupted", StepCase(settings=replace(several, compression="bf16"), interrupted=True)
    yield "powersgd whole", StepCase(settings=replace(several, **{**_LOW_RANK, "powersgd_rank": 10_000}), comm=_AFTER)
    low_rank = replace(long, **_LOW_RANK)
    yield "powersgd", StepCase(settings=low_rank, comm=_AFTER)
    yield "powersgd interrupted", StepCase(settings=low_rank, comm=_AFTER, interrupted=True)


def _between_nodes() -> Iterator[tuple[str, StepCase]]:
    half = replace(SEVERAL, compression="bf16", workers_per_node=2)
    yield "bf16 between nodes", StepCase(settings=half, comm=CommConfig(hierarchical=True))
    yield "bf16 between nodes in one message", StepCase(settings=half, comm=_BY_NODE_AFTER)
    low_rank = replace(_LONG, **_LOW_RANK, workers_per_node=2)
    yield "powersgd between nodes", StepCase(settings=low_rank, comm=_BY_NODE_AFTER)
    yield "powersgd between nodes interrupted", StepCase(settings=low_rank, comm=_BY_NODE_AFTER, interrupted=True)


CASES = {
    "nodes": dict((*_dense(4), *_compressed(4), *_between_nodes())),
    "pair": dict((*_dense(2), *_compressed(2))),
}
# In float64, where nine decimal digits separate sums in another order from omissions.
CASES = {
    group: {name: replace(case, dtype=torch.float64) for name, case in cases.items()} for group, cases in CASES.items()
}
# Any order and division of exact sums gives the same bits, also between nodes.
_EXACT = StepCase(settings=replace(SEVERAL, reduction="exact", simulated_workers=12, batch_size=53))
CASES["nodes"]["exact by node"] = replace(_EXACT, comm=CommConfig(hierarchical=True))
CASES["uneven"] = {
    name: CASES["nodes"][name] for name in (*(f"small_cnn {way}" for way in TRANSPORTS), "bf16 between nodes",
                                       "exact by node")
}  # fmt: skip
_DEFAULTS = ("small_cnn default", "resnet18 default")
CASES["alone"] = {
    **{name: CASES["pair"][name] for name in (*_DEFAULTS, "bf16", "powersgd")},
    **{f"{name} of four": CASES["nodes"][name] for name in _DEFAULTS},
    "exact": _EXACT,
}


def _received(gradient: Tensor, compression: Compression) -> Tensor:
    """Return the average of (n, m) matrices, one per rank, as the ranks receive it."""
    world = torch.distributed.group.WORLD
    assert world is not None
    flat = FlatGradient(gradient.flatten().clone(), [gradient.shape])
    compression.average(flat, world).wait()
    return flat.gradients()[0]


def _exchanges(world: World) -> dict[str, Any]:
    """Return relative errors of PowerSGD on made-up gradients."""
    errors_by_case: dict[str, Any] = {}

    def note(name: str, compression: Compression, gradient_of: Callable[[int], Tensor], steps: int) -> None:
        """Record the error after each step: the sum of all received gradients against the sum of all means."""
        received, exact, errors = torch.zeros_like(full), torch.zeros_like(full), []
        for step in range(steps):
            own = gradient_of(step)
            received += _received(own, compression)
            exact += distributed.all_reduce_sum_(own.clone()) / world.size
            errors.append(float((received - exact).norm() / exact.norm().clamp_min(1e-30)))
        errors_by_case[name] = errors

    generator = torch.Generator().manual_seed(7 + world.rank)
    full = torch.randn(24, 20, generator=generator, dtype=torch.float64)
    column, row = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((24, 1), (1, 20)))
    of_rank_one = column @ row
    note("constant", Compression("powersgd", 1), lambda _: full, 60)
    note("rank one in four", Compression("powersgd", 4), lambda _: of_rank_one, 3)
    for rank in (1, 4):
        note(f"zero first, rank {rank}", Compression("powersgd", rank), lambda step: full * (step > 0), 61)
    return errors_by_case


def main() -> None:
    output, *chosen = sys.argv[1:]
    with distributed.join_process_group(threads_per_worker=1) as world:
        results: dict[str, Any] = {"first weights": first_weights(), "nodes": distributed.ranks_by_node()}
        for group in chosen:
            cases = CASES.get(group, {})
            results |= {name: run(case, world) for name, case in cases.items()} if cases else _exchanges(world)
        if world.rank == world.size - 1:
            torch.save(results, output)


if __name__ == "__main__":
    main()
