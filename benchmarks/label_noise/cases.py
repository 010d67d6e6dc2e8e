"""What is audited: the labels that a network is trained on, and the truth about them."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.prepared import PreparedData
from pipeline.artifacts.tables import read_parquet
from pipeline.datasets.label_file import locate_labels, read_label_file
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.selection.noise import NoiseKind, plant

KINDS: tuple[NoiseKind, ...] = ("symmetric", "asymmetric", "instance")

# Which class of CIFAR-10 is taken for which (Patrini et al. 2017, Making Deep Neural Networks Robust to Label Noise).
CIFAR10_PAIRS = {
    "truck": "automobile",
    "bird": "airplane",
    "deer": "horse",
    "cat": "dog",
    "dog": "cat",
}


@dataclass(frozen=True, kw_only=True)
class Images:
    """The training images that take part.

    Attributes:
        pixels: uint8 (N, S, S, 3), may be memory-mapped.
        truth: (N,) clean classes.
        given: (N,) classes that came with the data, where these are audited; None where noise alone is planted.
        class_names: by class.
    """

    pixels: NDArray[np.uint8]
    truth: NDArray[np.int64]
    given: NDArray[np.int64] | None
    class_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One audit: `given` from the data, or noise of a kind and a rate."""

    kind: str
    rate: float = 0.0

    @property
    def name(self) -> str:
        """Of its folder and its rows."""
        return f"{self.kind}-{self.rate:g}" if self.kind in KINDS else self.kind


def load_images_and_truth(arguments: argparse.Namespace, data: PreparedData) -> Images:
    """The first `--images` training images of a fixed order, with the labels of `--labels` and `--truth`.

    Raises:
        InputError: a file that does not fit the data, or labels without an error among them.
    """
    paths = DataPaths(root=arguments.data)
    own = data.train.labels
    truth = _labels(arguments.truth, "--truth", own, paths, data.class_names)
    given = _labels(arguments.labels, "--labels", own, paths, data.class_names)
    n = min(arguments.images or len(own), len(own))
    rows = np.sort(np.random.default_rng(0).permutation(len(own))[:n])
    audited = arguments.labels is not None or arguments.truth is not None
    if audited and (given[rows] == truth[rows]).all():
        raise InputError(
            f"{arguments.labels or arguments.truth}: no label differs from the truth; there is none to find"
        )
    return Images(
        pixels=data.train.images if n == len(own) else data.train.images[rows],
        truth=truth[rows],
        given=given[rows] if audited else None,
        class_names=data.class_names,
    )


def cases_of(kinds: Sequence[str] | None, rates: Sequence[float], images: Images) -> Iterator[Case]:
    """Labels from a file first, then every kind at every rate; without such a file, all kinds by default."""
    if images.given is not None:
        yield Case(kind="given")
    for kind in KINDS if kinds is None and images.given is None else kinds or ():
        yield from (Case(kind=kind, rate=rate) for rate in rates)


def labels_of(case: Case, images: Images, *, seed: int, probabilities: NDArray[np.float32] | None) -> NDArray[np.int64]:
    """(N,) the labels to train on.

    Args:
        probabilities: (N, K) of the reference model, for noise by instance.

    Raises:
        InputError: pairs that the data do not have, or a rate out of reach.
    """
    if case.kind not in KINDS:
        assert images.given is not None
        return images.given
    kind = KINDS[KINDS.index(case.kind)]
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    transitions = _cifar10_transitions(images.class_names) if kind == "asymmetric" else None
    noisy = plant(images.truth, kind, case.rate, rng=rng, probabilities=probabilities, transitions=transitions)
    if (noisy == images.truth).all():
        raise InputError(f"--rates: {case.rate:g} of {len(noisy)} images is none; raise it, or --images")
    return noisy


def _cifar10_transitions(class_names: Sequence[str]) -> dict[int, int]:
    missing = sorted({*CIFAR10_PAIRS, *CIFAR10_PAIRS.values()} - set(class_names))
    if missing:
        raise InputError(
            f"--kinds: asymmetric pairs the classes of CIFAR-10, and the data have no {missing[0]}; leave it out"
        )
    return {class_names.index(own): class_names.index(taken_for) for own, taken_for in CIFAR10_PAIRS.items()}


def _labels(
    file: Path | None, key: str, own: NDArray[np.int64], paths: DataPaths, class_names: Sequence[str]
) -> NDArray[np.int64]:
    """(N,) the prepared labels, but for those that the file lists."""
    labels = own.copy()
    if file is not None:
        manifests = {
            split: read_parquet(paths.manifest(split), ["path"])["path"].to_pylist() for split in ("train", "test")
        }
        located = locate_labels(
            read_label_file(file, key=key),
            paths=manifests["train"],
            class_names=class_names,
            test_paths=set(manifests["test"]),
        )
        labels[list(located)] = list(located.values())
    return labels
