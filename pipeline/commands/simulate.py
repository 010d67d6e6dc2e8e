"""`python -m pipeline simulate`: what more GPUs would bring, by a model of data-parallel steps. Nothing runs on them.

A machine of machines/*.yaml, a network of torchvision, and how fast one GPU trains it alone give throughput,
efficiency, time and cost of a training against the number of GPUs, for several ways to add up gradients. `--fit` takes
the constants of a link from measured all-reduces and says how well they predict those held out. `--measure` times one
step on the GPU that is here, or on the CPU; the links stay those of the machine's file.

The model leaves out stragglers, congestion, and that a GPU is less efficient on small batches: it is an upper bound.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence

import torch

from pipeline.errors import InputError
from pipeline.simulator import AllReduceTiming, Job, LinkFit, fit, grid, machine
from pipeline.simulator.arguments import parse, simulate_parser
from pipeline.simulator.fitting import load_all_reduce_times
from pipeline.simulator.grid import gpu_counts, simulate_all
from pipeline.simulator.job import assumed_job, check_network, device_name, local_device, measured_job
from pipeline.simulator.machine import MachineConfig, load_machine
from pipeline.simulator.report import (
    constant_lines,
    job_constants,
    machine_constants,
    table,
    undivided_lines,
    write_results,
)


def make_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    return simulate_parser(__doc__)


def main(argv: Sequence[str]) -> int:
    """Raises InputError for a machine, network, number of GPUs or file of points that will not do."""
    arguments = parse(argv, make_parser())
    fitted = _fit(arguments) if arguments.fit else None
    if fitted:
        print("\n".join(_fit_lines(fitted, arguments)))
    if arguments.machine is None:
        return 0
    described, origins = _machine(arguments, fitted)
    device = local_device() if arguments.measure else None
    job = _job(arguments, device)
    sent = grid.communication_variants(arguments, job)
    cluster = machine(**described.model_dump(exclude={"guessed", "measured"}))
    try:
        rows = simulate_all(
            cluster,
            job,
            sent,
            gpus=sorted(set(arguments.gpus or gpu_counts(cluster))),
            batch_sizes=arguments.batch_sizes,
            examples=arguments.examples,
            price=arguments.price_per_gpu_hour,
        )
    except ValueError as error:
        raise InputError(f"--gpus: {error}") from None
    timed = device_name(device) if device else None
    title = f"SIMULATED, not measured: {arguments.network} on {arguments.machine.stem}"
    title += f", each GPU as fast as {timed} here" if timed else ""
    print(title)
    print("\n".join([*table(rows), *undivided_lines(rows, arguments.batch_sizes)]))
    constants = {
        **machine_constants(described, origins),
        **job_constants(arguments, job, timed),
        **grid.communication_constants(sent, job),
    }
    print("\n".join(constant_lines(constants)))
    write_results(arguments, title, rows, sent, constants, fitted)
    return 0


def _fit(arguments: argparse.Namespace) -> LinkFit:
    times = load_all_reduce_times(arguments.fit)
    points = [AllReduceTiming(point.n_bytes, point.workers, point.seconds) for point in times.points]
    try:
        return fit(points, times.algorithm, hold_out=arguments.hold_out)
    except ValueError as error:
        raise InputError(f"{arguments.fit}: {error}") from None


def _fit_lines(fitted: LinkFit, arguments: argparse.Namespace) -> Iterator[str]:
    held_out = {"workers": "number of workers", "n_bytes": "size"}[arguments.hold_out]
    yield f"fitted to {arguments.fit}:"
    yield f"  latency_seconds, of a hop of a {fitted.algorithm}: {fitted.link.latency_seconds:.3g}"
    yield f"  bytes_per_second: {fitted.link.bytes_per_second:.4g}"
    yield f"  error: {fitted.relative_error:.1%} of these points"
    yield f"  held out, each {held_out} from the others: {fitted.held_out_error:.1%}"


def _machine(arguments: argparse.Namespace, fitted: LinkFit | None) -> tuple[MachineConfig, dict[str, str]]:
    """The description, with the fitted constants in the link they belong to, and where each figure comes from."""
    described = load_machine(arguments.machine)
    origins: dict[str, str] = dict(described.origins)
    if fitted is None:
        return described, origins
    link = getattr(described, arguments.link)
    if link is None:
        raise InputError(f"--link {arguments.link}: {arguments.machine} has no such link; give the other one")
    # What a tree was seen to take is said of trees alone.
    latency = {"ring": "latency_seconds", "tree": "tree_latency_seconds"}[fitted.algorithm]
    constants = {
        latency: fitted.link.latency_seconds,
        # The model adds up the adapters of a node; the points have them all.
        "bytes_per_second": fitted.link.bytes_per_second / getattr(link, "adapters_per_node", 1),
    }
    origins |= {f"{arguments.link}.{key}": "measured" for key in constants}
    return described.model_copy(update={arguments.link: link.model_copy(update=constants)}), origins


def _job(arguments: argparse.Namespace, device: torch.device | None) -> Job:
    check_network(arguments.network, image_size=arguments.image_size)
    network = {
        "image_size": arguments.image_size,
        "n_classes": arguments.classes,
        "local_batch": arguments.local_batch,
    }
    if device:
        return _timed(arguments, network, device)
    return assumed_job(arguments.network, **network, images_per_second=arguments.images_per_second)


def _timed(arguments: argparse.Namespace, network: Mapping[str, int], device: torch.device) -> Job:
    try:
        return measured_job(arguments.network, **network, device=device)
    # BatchNorm over a single value, or more images than the memory holds: each says it in its own way.
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"--local-batch {arguments.local_batch}: {arguments.network} does not train on as many images here "
            f"({reason}); give another"
        ) from None
