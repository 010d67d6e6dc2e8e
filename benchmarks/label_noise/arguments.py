"""Parse the command line of the label-noise benchmark."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.label_noise.cases import ALL_KINDS, CLEAN, PRETRAINED, TWO_NETWORKS, VARIANTS
from benchmarks.label_noise.choices import CHOICES, NAMES
from pipeline.errors import InputError


def parse(description: str, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check arguments; by default those of this process.

    Raises:
        InputError: arguments contradict each other.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.label_noise",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_cases(parser)
    parser.add_argument("--work", type=Path, default=Path(".work/label_noise"), help="folder of the cases")
    _add_time(parser)
    parser.add_argument("--scorers", nargs="+", choices=NAMES, help="scorers to run (default: all whose inputs exist)")
    parser.add_argument(
        "--default", choices=tuple(CHOICES), default="self_confidence", help="scorer that the comparison refers to"
    )
    parser.add_argument(
        "--predictions-only",
        action="store_true",
        help="run finetune and extract alone, for scorers that read no components, embedding or neighbors",
    )
    parser.add_argument("--resamples", type=_positive, default=1000, help="number of bootstrap resamples")
    parser.add_argument("--summarize", action="store_true", help="summarize all cases in --work; run nothing")
    arguments = parser.parse_args(argv)
    _check(arguments, parser)
    return arguments


def _add_time(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, default=900.0, help="training time of an extractor, all its networks together"
    )
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="how the time of a step is measured: cpu counts the processor time of all threads, which other work on "
        "the machine changes less; for one thread (OMP_NUM_THREADS=1), since waiting threads count, too",
    )
    parser.add_argument("--seconds-per-step", type=float, help="measured before (default: measured, kept in --work)")


def _add_cases(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with prepare/")
    parser.add_argument(
        "--params", type=Path, default=Path("params.yaml"), help="file with finetune, extract, reduce and filter"
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=(*ALL_KINDS, CLEAN),
        help="kinds of noise (default: all kinds of wrong labels, or none with --labels or --truth); clean: the true "
        "labels, for the accuracy of the network alone",
    )
    parser.add_argument("--rates", type=_share, nargs="+", default=[0.1], help="shares of wrong labels or outliers")
    parser.add_argument("--folds", type=_positive, nargs="+", default=[1], help="finetune.folds of the extractor")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        default=["scratch"],
        help="training of the extractor; fine_tuned and frozen start from --weights, two_rounds and averaged share the "
        "time between two networks",
    )
    parser.add_argument(
        "--drop-share",
        type=_share,
        default=0.1,
        help="share of the images that two_rounds drops before its second network (default: 0.1)",
    )
    parser.add_argument("--weights", type=Path, help="state dict that fine_tuned and frozen start from")
    parser.add_argument(
        "--labels", type=Path, help="CSV path,label: labels to audit, if they differ from the prepared ones"
    )
    parser.add_argument("--truth", type=Path, help="CSV path,label: true labels, if they differ from the prepared ones")
    parser.add_argument(
        "--images", type=_positive, help="number of training images, the same share of each class (default: all)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise")


def _check(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    if arguments.summarize:
        used = {"summarize", "work"}
        unused = [key for key, value in vars(arguments).items() if key not in used and value != parser.get_default(key)]
        if unused:
            raise InputError(f"--summarize: reads --work and runs nothing; omit --{unused[0]}")
    pretrained = [variant for variant in arguments.variants if variant in PRETRAINED]
    of_two = [variant for variant in arguments.variants if variant in TWO_NETWORKS]
    if of_two and arguments.folds != [1]:
        raise InputError(f"--folds: {of_two[0]} trains two networks on all images; give 1, or omit {of_two[0]}")
    if pretrained and arguments.weights is None:
        raise InputError(f"--variants: {pretrained[0]} starts from weights; give their file with --weights")
    if arguments.weights is not None and not pretrained:
        raise InputError(f"--weights: {arguments.weights} is for fine_tuned and frozen; name one in --variants")
    if arguments.weights is not None and not arguments.weights.is_file():
        raise InputError(f"--weights: {arguments.weights} does not exist; give a file with a state dict")
    if arguments.seconds <= 0:
        raise InputError(f"--seconds: {arguments.seconds:g} is not a training time; give more than 0")
    if arguments.seconds_per_step is not None and arguments.seconds_per_step <= 0:
        raise InputError(f"--seconds-per-step: {arguments.seconds_per_step:g} is not a time; give more than 0")
    if arguments.seed < 0:
        raise InputError(f"--seed: {arguments.seed} is negative; give 0 or more")


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value
