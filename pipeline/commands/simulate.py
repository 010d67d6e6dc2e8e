"""`python -m pipeline simulate`: predict the speedup of more GPUs by a model of data-parallel steps.

Nothing runs on those GPUs. The inputs are a machine of machines/*.yaml, a network of torchvision, and the speed of one
GPU. The results are throughput, efficiency, time and cost of a training by number of GPUs, for several algorithms of
all-reduce. `--fit` fits the constants of a link to measured all-reduces and reports the cross-validated error.
`--measure` times one step on the GPU of this machine, or on its CPU; the links remain those of the machine's file.

The model ignores stragglers, congestion, and the lower efficiency of a GPU on small batches: it is an upper bound.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from pipeline.commands import command_parser, float_or_nan, packaged_path, positive_float
from pipeline.errors import InputError, explain_out_of_memory
from pipeline.paths import WorkPaths
from pipeline.simulator import AllReduceTiming, Job, LinkFit, fit
from pipeline.simulator.fitting import load_all_reduce_times
from pipeline.simulator.grid import (
    communication_constants,
    communication_variants,
    constant_lines,
    gpu_counts,
    job_constants,
    machine_constants,
    simulate_all,
    table,
    undivided_lines,
    write_results,
)
from pipeline.simulator.job import assumed_job, check_network, device_name, local_device, measured_job
from pipeline.simulator.machine import MachineConfig, load_machine
from pipeline.simulator.model import ALL_REDUCE

_UNSET = object()
# 90 epochs of ImageNet's training images.
_EXAMPLES = 90 * 1_281_167
# --link -> key of a machine's file.
_LINKS = ("intra_node", "inter_node")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("simulate", __doc__)
    parser.add_argument("--machine", type=_machine_path, help="name of a file in machines/, such as summit, or a path")
    parser.add_argument("--network", default="resnet50", help="a classifier of torchvision (default: resnet50)")
    parser.add_argument("--image-size", type=_count, default=224, help="pixels (default: 224)")
    parser.add_argument("--classes", type=_count, default=1000, help="outputs of the network (default: 1000)")
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument("--images-per-second", type=positive_float, help="training speed of one GPU of the machine")
    speed.add_argument(
        "--measure", action="store_true", help="time a step on the GPU of this machine, or on its CPU without one"
    )
    parser.add_argument("--local-batch", type=_count, default=64, help="images per GPU of weak scaling (default: 64)")
    parser.add_argument(
        "--global-batch-sizes",
        type=_count,
        nargs="+",
        default=[3840, 7680, 15360, 30720],
        help="images of a step, for strong scaling (default: 3840 7680 15360 30720)",
    )
    parser.add_argument("--gpus", type=_count, nargs="+", help="(default: 1, 2, 4, ... nodes, up to the whole machine)")
    parser.add_argument(
        "--algorithms", nargs="+", choices=[*ALL_REDUCE], default=["ring", "tree", "hierarchical_tree"],
        help="of the all-reduce (default: ring tree hierarchical_tree)",
    )  # fmt: skip
    parser.add_argument(
        "--bucket-mib", type=positive_float,
        help="gradients per message (default: as DDP, 1 in the first and 25 in others; for Horovod at most 128)",
    )  # fmt: skip
    parser.add_argument(
        "--compression", type=_at_least_1, default=1.0, help="2 for gradients sent as bf16 (default: 1)"
    )
    parser.add_argument(
        "--no-overlap", action="store_true",
        help="send after the backward pass, not during it; in one message without --bucket-mib",
    )  # fmt: skip
    parser.add_argument(
        "--negotiation", type=positive_float, nargs=2, metavar=("CYCLE_MS", "MESSAGE_US"),
        help="also simulate Horovod: its cycle time, and the time of its coordinator for a message",
    )  # fmt: skip
    parser.add_argument("--examples", type=positive_float, default=float(_EXAMPLES), help="images over all epochs")
    parser.add_argument("--price-per-gpu-hour", type=positive_float, help="in any currency")
    parser.add_argument("--fit", type=Path, metavar="POINTS.json", help="measured all-reduces")
    parser.add_argument(
        "--hold-out", choices=["workers", "n_bytes"],
        help="groups for the cross-validation of --fit: numbers of workers, or sizes (default: workers)",
    )  # fmt: skip
    parser.add_argument("--link", choices=[*_LINKS], help="link of the machine that gets the fitted constants")
    parser.add_argument(
        "--out", type=Path, default=WorkPaths().simulation_results, help="folder of the JSON and SVG files"
    )
    return parser


def parse(argv: Sequence[str], parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the arguments.

    Raises:
        InputError: options do not fit together, or have no effect.
    """
    arguments = parser.parse_args(argv)
    _check_combinations(arguments)
    _check_used(arguments, _explicit_options(parser, argv))
    if arguments.hold_out is None:
        arguments.hold_out = "workers"
    return arguments


def _explicit_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, str]:
    """Return name -> option of the options on the command line."""
    options = {action.dest: action.option_strings[0] for action in parser._actions if action.dest != "help"}
    # argparse sets no default if the namespace already has a value.
    blank = argparse.Namespace(**dict.fromkeys(options, _UNSET))
    values = vars(parser.parse_args(argv, blank))
    return {name: option for name, option in options.items() if values[name] is not _UNSET}


def _check_used(arguments: argparse.Namespace, explicit: Mapping[str, str]) -> None:
    """Reject options without effect."""
    if arguments.fit is None and "hold_out" in explicit:
        raise InputError("--hold-out: has no effect without --fit; add --fit POINTS.json, or remove --hold-out")
    unused = [option for name, option in explicit.items() if name not in ("fit", "hold_out", "link")]
    if arguments.machine is None and unused:
        raise InputError(
            f"{unused[0]}: has no effect without a machine; add --machine, such as summit, or remove {unused[0]}"
        )


def _check_combinations(arguments: argparse.Namespace) -> None:
    if arguments.machine is None and arguments.fit is None:
        raise InputError("simulate: nothing to do; use --machine, such as summit, or --fit, or both")
    if arguments.machine is not None and not (arguments.images_per_second or arguments.measure):
        raise InputError(
            "simulate: the speed of one GPU is unknown; use --images-per-second, or --measure on such a GPU"
        )
    if (arguments.link is not None) != (arguments.machine is not None and arguments.fit is not None):
        raise InputError(
            "--link: selects the link of --machine for the constants of --fit; use all three, or not --link"
        )


def _machine_path(text: str) -> Path:
    """Return machines/summit.yaml for `summit`, of the package where it is not here."""
    path = Path(text) if Path(text).suffix else Path("machines") / f"{text}.yaml"
    return path if path.exists() or not packaged_path(str(path)).exists() else packaged_path(str(path))


def _count(text: str) -> int:
    if not 1 <= (value := float_or_nan(text)) < math.inf or not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text} is not an integer of 1 or more")
    return int(value)


def _at_least_1(text: str) -> float:
    if not 1 <= (value := float_or_nan(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 1 or more")
    return value


def main(argv: Sequence[str]) -> int:
    """Simulate, print and write the results.

    Returns:
        0.

    Raises:
        InputError: the machine, the network, a number of GPUs or the file of points is not valid.
    """
    arguments = parse(argv, make_parser())
    fitted = _fit(arguments) if arguments.fit else None
    if fitted:
        print("\n".join(_fit_lines(fitted, arguments)))
    if arguments.machine is None:
        return 0
    config, origins = _machine(arguments, fitted)
    device = local_device() if arguments.measure else None
    job = _job(arguments, device)
    variants = communication_variants(arguments, job)
    try:
        rows = simulate_all(
            config.machine,
            job,
            variants,
            gpus=sorted(set(arguments.gpus or gpu_counts(config.machine))),
            batch_sizes=arguments.global_batch_sizes,
            examples=arguments.examples,
            price=arguments.price_per_gpu_hour,
        )
    except ValueError as error:
        raise InputError(f"--gpus: {error}") from None
    timed = device_name(device) if device else None
    title = f"SIMULATED, not measured: {arguments.network} on {arguments.machine.stem}"
    title += f", each GPU as fast as {timed} here" if timed else ""
    print(title)
    print("\n".join([*table(rows), *undivided_lines(rows, arguments.global_batch_sizes)]))
    constants = {
        **machine_constants(config, origins),
        **job_constants(arguments, job, timed),
        **communication_constants(variants, job),
    }
    print("\n".join(constant_lines(constants)))
    write_results(arguments, title, rows, variants, constants, fitted)
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
    """Return the machine's file with the fitted constants in its link, and the origin of each value."""
    config = load_machine(arguments.machine)
    origins: dict[str, str] = dict(config.origins)
    if fitted is None:
        return config, origins
    key = arguments.link
    link = getattr(config, key)
    if link is None:
        raise InputError(f"--link {arguments.link}: {arguments.machine} has no such link; use the other one")
    # A latency measured with trees applies only to trees.
    latency = {"ring": "latency_seconds", "tree": "tree_latency_seconds"}[fitted.algorithm]
    constants = {
        latency: fitted.link.latency_seconds,
        # The model sums the adapters of a node; the points used all of them.
        "bytes_per_second": fitted.link.bytes_per_second / getattr(link, "adapters_per_node", 1),
    }
    origins |= {f"{key}.{constant}": "measured" for constant in constants}
    return config.model_copy(update={key: link.model_copy(update=constants)}), origins


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
    too_large = f"--local-batch {arguments.local_batch}: so many images do not fit the memory; lower it"
    try:
        with explain_out_of_memory(too_large):
            return measured_job(arguments.network, **network, device=device)
    except InputError:
        raise
    # BatchNorm over a single value, and too little memory, raise different errors.
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"--local-batch {arguments.local_batch}: {arguments.network} does not train on this many images here "
            f"({reason}); use another number"
        ) from None
