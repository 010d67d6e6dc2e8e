"""`python -m pipeline simulate`: what more GPUs would bring, by a model of data-parallel steps. Nothing runs on them.

A machine of machines/*.yaml, a network of torchvision, and how fast one GPU trains it alone give throughput,
efficiency, time and cost of a training against the number of GPUs, for several ways to add up gradients. `--fit` takes
the constants of a link from measured all-reduces and says how well they predict those held out. `--measure` times one
step on the GPU that is here, or on the CPU; the links stay those of the machine's file.

The model leaves out stragglers, congestion, and that a GPU is less efficient on small batches: it is an upper bound.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from pipeline.commands import command_parser
from pipeline.errors import InputError
from pipeline.paths import WorkPaths
from pipeline.simulator import AllReduceTiming, Job, LinkFit, fit, grid, machine
from pipeline.simulator.fitting import load_all_reduce_times
from pipeline.simulator.grid import gpu_counts, simulate_all
from pipeline.simulator.job import assumed_job, check_network, device_name, local_device, measured_job
from pipeline.simulator.machine import MachineConfig, load_machine
from pipeline.simulator.model import ALL_REDUCE
from pipeline.simulator.report import (
    constant_lines,
    job_constants,
    machine_constants,
    table,
    undivided_lines,
    write_results,
)

# The command line of `python -m pipeline simulate`.


_NOT_GIVEN = object()
# 90 epochs of ImageNet's training images.
_EXAMPLES = 90 * 1_281_167


def simulate_parser(description: str | None) -> argparse.ArgumentParser:
    """The parser of the command, with the docstring of its module."""
    parser = command_parser("simulate", description)
    parser.add_argument("--machine", type=_machine_path, help="a name in machines/, such as summit, or a file")
    parser.add_argument("--network", default="resnet50", help="a classifier of torchvision (default: resnet50)")
    parser.add_argument("--image-size", type=_count, default=224, help="pixels (default: 224)")
    parser.add_argument("--classes", type=_count, default=1000, help="(default: 1000)")
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument("--images-per-second", type=_positive, help="that one GPU of the machine trains alone")
    speed.add_argument(
        "--measure", action="store_true", help="time a step on the GPU here, or on the CPU where there is none"
    )
    parser.add_argument("--local-batch", type=_count, default=64, help="of weak scaling, images a GPU (default: 64)")
    parser.add_argument(
        "--batch-sizes", type=_count, nargs="+", default=[3840, 7680, 15360, 30720], help="of strong scaling"
    )
    parser.add_argument("--gpus", type=_count, nargs="+", help="(default: nodes doubled, up to the whole machine)")
    parser.add_argument("--algorithms", nargs="+", choices=[*ALL_REDUCE], default=["ring", "tree", "hierarchical_tree"])
    parser.add_argument(
        "--bucket-mib", type=_positive,
        help="gradients in a message (default: as DDP's, 1 in the first and 25 in others; of Horovod at most 128)",
    )  # fmt: skip
    parser.add_argument(
        "--compression", type=_at_least_1, default=1.0, help="2 where gradients travel as bf16 (default: 1)"
    )
    parser.add_argument(
        "--no-overlap", action="store_true",
        help="send after the backward pass, not beside it, in one message where --bucket-mib is not given",
    )  # fmt: skip
    parser.add_argument(
        "--negotiation", type=_positive, nargs=2, metavar=("CYCLE_MS", "MESSAGE_US"),
        help="also simulate Horovod: its cycle time, and what its coordinator takes for a message",
    )  # fmt: skip
    parser.add_argument("--examples", type=_positive, default=float(_EXAMPLES), help="images over all epochs")
    parser.add_argument("--price-per-gpu-hour", type=_positive, help="in any currency")
    parser.add_argument("--fit", type=Path, metavar="POINTS.json", help="measured all-reduces")
    parser.add_argument(
        "--hold-out", choices=["workers", "n_bytes"],
        help="what --fit predicts from the others: each number of workers, or each size (default: workers)",
    )  # fmt: skip
    parser.add_argument(
        "--link", choices=["intra_node", "inter_node"], help="of the machine, that takes the fitted constants"
    )
    parser.add_argument(
        "--out", type=Path, default=WorkPaths().simulation_results, help="folder of the JSON and SVG files"
    )
    return parser


def parse(argv: Sequence[str], parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Raises InputError where two of them do not go together."""
    arguments = parser.parse_args(argv)
    _check_together(arguments)
    _check_read(arguments, _options_given(parser, argv))
    if arguments.hold_out is None:
        arguments.hold_out = "workers"
    return arguments


def _options_given(parser: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, str]:
    """Name -> option, of those on the command line."""
    options = {action.dest: action.option_strings[0] for action in parser._actions if action.dest != "help"}
    # What has a value already is given no default.
    blank = argparse.Namespace(**dict.fromkeys(options, _NOT_GIVEN))
    found = vars(parser.parse_args(argv, blank))
    return {name: option for name, option in options.items() if found[name] is not _NOT_GIVEN}


def _check_read(arguments: argparse.Namespace, given: Mapping[str, str]) -> None:
    """Refuse what would be read by nobody."""
    if arguments.fit is None and "hold_out" in given:
        raise InputError("--hold-out: says what --fit predicts; give --fit POINTS.json, or drop it")
    unread = [option for name, option in given.items() if name not in ("fit", "hold_out", "link")]
    if arguments.machine is None and unread:
        raise InputError(
            f"{unread[0]}: nothing is simulated without a machine; give --machine, such as summit, or drop it"
        )


def _check_together(arguments: argparse.Namespace) -> None:
    if arguments.machine is None and arguments.fit is None:
        raise InputError("simulate: nothing to do; give --machine, such as summit, or --fit, or both")
    if arguments.machine is not None and not (arguments.images_per_second or arguments.measure):
        raise InputError("simulate: how fast is one GPU alone? give --images-per-second, or --measure on one like it")
    if (arguments.link is not None) != (arguments.machine is not None and arguments.fit is not None):
        raise InputError("--link: says which link of --machine takes the constants of --fit; give all three, or not it")


def _machine_path(text: str) -> Path:
    """`summit` is machines/summit.yaml."""
    path = Path(text)
    return path if path.suffix else Path("machines") / f"{text}.yaml"


def _count(text: str) -> int:
    if not 1 <= (value := float(text)) < math.inf or not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 1 on")
    return int(value)


def _positive(text: str) -> float:
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _at_least_1(text: str) -> float:
    if not 1 <= (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


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
    cluster = machine(**described.model_dump(exclude={"assumed", "measured"}))
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
