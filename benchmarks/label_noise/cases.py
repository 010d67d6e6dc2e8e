"""What is audited: the labels that a network is trained on, the truth about them, and how it is trained."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from pipeline.artifacts.prepared import PreparedData, read_true_labels
from pipeline.artifacts.tables import read_parquet
from pipeline.datasets.label_noise import NoiseKind, plant_label_noise
from pipeline.datasets.labels import locate_labels, read_label_file
from pipeline.errors import InputError
from pipeline.paths import DataPaths

KINDS: tuple[NoiseKind, ...] = get_args(NoiseKind)

Variant = Literal["scratch", "fine_tuned", "frozen"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
"""Of the extractor: random weights, or those of a file, trained all; those of a file with a head of its own."""

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
    """The training images that take part, N of the M prepared ones.

    Attributes:
        taken: (M,) bool, which they are.
        pixels: (N, H, W, 3) uint8.
        truth: (N,) clean classes.
        given: (N,) classes that came with the data, where these are audited; None where noise alone is planted.
        class_names: by class.
    """

    taken: NDArray[np.bool_]
    pixels: NDArray[np.uint8]
    truth: NDArray[np.int64]
    given: NDArray[np.int64] | None
    class_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One audit: `given` from the data, or noise of a kind and a rate; by which extractor, of how many folds."""

    kind: str
    rate: float = 0.0
    variant: Variant = "scratch"
    folds: int = 1

    @property
    def name(self) -> str:
        """Of its folder and its rows."""
        labels = f"{self.kind}-{self.rate:g}" if self.kind in KINDS else self.kind
        return f"{labels}-{self.variant}-folds{self.folds}"

    @property
    def has_budget(self) -> bool:
        """Whether its networks are trained by steps; a head is fitted to its optimum."""
        return self.variant != "frozen"


def load_images_and_truth(arguments: argparse.Namespace, data: PreparedData) -> Images:
    """`--images` training images, the same share of every class, with the labels of `--labels` and `--truth`.

    Where `prepare` changed labels on purpose, its own are audited against the true ones.

    Raises:
        InputError: a file that does not fit the data, labels without an error among them, or a number of
            images that cannot be drawn.
    """
    paths = DataPaths(root=arguments.data)
    own, planted_truth = data.train.labels, read_true_labels(paths)
    truth = _labels(
        arguments.truth, "--truth", own if planted_truth is None else planted_truth, paths, data.class_names
    )
    given = _labels(arguments.labels, "--labels", own, paths, data.class_names)
    taken = _stratified(truth, arguments.images)
    audited = arguments.labels is not None or arguments.truth is not None or planted_truth is not None
    if audited and (given[taken] == truth[taken]).all():
        file = arguments.labels or arguments.truth or paths.manifest("train")
        raise InputError(f"{file}: no label differs from the truth; there is none to find")
    return Images(
        taken=taken,
        # A mask copies the images; where all take part their memory map is enough.
        pixels=data.train.images if taken.all() else data.train.images[taken],
        truth=truth[taken],
        given=given[taken] if audited else None,
        class_names=data.class_names,
    )


def cases_of(arguments: argparse.Namespace, images: Images) -> Iterator[Case]:
    """Labels from a file first, then every kind at every rate; without such a file, all kinds by default.

    Each by every variant of the extractor and every number of folds.
    """
    kinds = arguments.kinds
    if kinds is None:
        kinds = KINDS if images.given is None else ()
    audits = [] if images.given is None else [("given", 0.0)]
    audits += product(kinds, arguments.rates)
    for (kind, rate), variant, folds in product(audits, arguments.variants, arguments.folds):
        yield Case(kind=kind, rate=rate, variant=variant, folds=folds)


def labels_of(case: Case, images: Images, *, seed: int) -> NDArray[np.int64]:
    """(N,) the labels to train on: those of a kind and a rate are the same for all extractors.

    Raises:
        InputError: pairs that the data do not have, or a rate out of reach.
    """
    if case.kind not in KINDS:
        assert images.given is not None
        return images.given
    kind = KINDS[KINDS.index(case.kind)]
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    partners = _cifar10_partners(images.class_names) if kind == "pair" else None
    noisy = plant_label_noise(images.truth, kind, case.rate, images=images.pixels, rng=rng, partners=partners)
    if (noisy == images.truth).all():
        raise InputError(f"--rates: {case.rate:g} of {len(noisy)} images is none; raise it, or --images")
    return noisy


def _stratified(truth: NDArray[np.int64], count: int | None) -> NDArray[np.bool_]:
    """(M,) which of the images to take; None: all."""
    n = len(truth)
    taken = np.ones(n, dtype=np.bool_)
    if count is None or count == n:
        return taken
    try:
        _, left = train_test_split(np.arange(n), train_size=count, test_size=n - count, stratify=truth, random_state=0)
    except ValueError as error:
        raise InputError(f"--images: {count} of {n} cannot be drawn: {error}; give another number") from None
    taken[left] = False
    return taken


def _cifar10_partners(class_names: Sequence[str]) -> dict[int, int]:
    missing = sorted({*CIFAR10_PAIRS, *CIFAR10_PAIRS.values()} - set(class_names))
    if missing:
        raise InputError(
            f"--kinds: pair is of the classes of CIFAR-10, and the data have no {missing[0]}; leave it out"
        )
    return {class_names.index(own): class_names.index(taken_for) for own, taken_for in CIFAR10_PAIRS.items()}


def _labels(
    file: Path | None, key: str, own: NDArray[np.int64], paths: DataPaths, class_names: Sequence[str]
) -> NDArray[np.int64]:
    """(M,) the prepared labels, but for those that the file lists."""
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
