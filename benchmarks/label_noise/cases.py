"""The cases of the benchmark: labels with errors, the true labels, and the training of the extractor."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from benchmarks.label_noise.outliers import OUTLIER_KINDS
from pipeline.artifacts.prepared import PreparedData, read_true_labels
from pipeline.artifacts.tables import read_parquet
from pipeline.datasets.label_noise import NoiseKind, plant_label_noise
from pipeline.datasets.labels import locate_labels, read_label_file
from pipeline.errors import InputError
from pipeline.paths import DataPaths

KINDS: tuple[NoiseKind, ...] = get_args(NoiseKind)
"""Kinds of wrong labels."""

ALL_KINDS = (*KINDS, *OUTLIER_KINDS)

CLEAN = "clean"
"""Kind without any wrong label: what is measured is the accuracy of the network, on the test images."""

Variant = Literal["scratch", "fine_tuned", "frozen", "two_rounds", "averaged"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
"""Training of the extractor: all weights, from random ones (scratch) or those of a file (fine_tuned), or a new head on
frozen weights of a file (frozen). By two networks of half the steps each, from random weights: the second one without
the most suspect images of the first (two_rounds), or with other random numbers, and the means of both (averaged)."""

PRETRAINED: tuple[Variant, ...] = ("fine_tuned", "frozen")
TWO_NETWORKS: tuple[Variant, ...] = ("two_rounds", "averaged")

Part = Literal["half", "half_again", "kept"]
"""Networks of `TWO_NETWORKS`: of all images, again with other random numbers, and of the images that a round keeps."""
_PARTS: Mapping[str, tuple[Part, ...]] = {"two_rounds": ("half", "kept"), "averaged": ("half", "half_again")}

CIFAR10_PAIRS = {
    "truck": "automobile",
    "bird": "airplane",
    "deer": "horse",
    "cat": "dog",
    "dog": "cat",
}
"""Class of CIFAR-10 -> the class it is mislabeled as (Patrini et al. 2017, Making Deep Neural Networks Robust to Label
Noise)."""


@dataclass(frozen=True, kw_only=True)
class Images:
    """The training images that take part, N of the M prepared ones.

    Attributes:
        mask: (M,) bool, which prepared images take part.
        pixels: (N, H, W, 3) uint8.
        truth: (N,) true classes.
        data_labels: (N,) labels of the data, if these are audited; None if the only errors are planted noise.
        class_names: by class.
    """

    mask: NDArray[np.bool_]
    pixels: NDArray[np.uint8]
    truth: NDArray[np.int64]
    data_labels: NDArray[np.int64] | None
    class_names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One audit.

    Attributes:
        kind: a kind of noise, `CLEAN`, or "given" for the labels of the data.
        rate: share of wrong labels or outliers, 0 to 1.
        variant: or a part of one, whose folder several variants share.
        folds: `finetune.folds` of the extractor.
        drop_share: share of the images that the second round of `two_rounds` leaves out, 0 to 1.
    """

    kind: str
    rate: float = 0.0
    variant: Variant | Part = "scratch"
    folds: int = 1
    drop_share: float = 0.1

    @property
    def name(self) -> str:
        """Name of its folder, and in tables."""
        labels = f"{self.kind}-{self.rate:g}" if self.kind in ALL_KINDS else self.kind
        return f"{labels}-{self.variant}-folds{self.folds}"

    @property
    def has_budget(self) -> bool:
        """Whether its networks are trained for a number of steps; a head alone is fitted to its optimum."""
        return self.variant != "frozen"

    @property
    def n_networks(self) -> int:
        """Number of networks that share the training time equally."""
        return self.folds if self.variant in VARIANTS and self.variant not in TWO_NETWORKS else 2

    def part(self, part: Part) -> "Case":
        """Return a part of this case."""
        return replace(self, variant=part)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the folders of its parts; empty if it has none."""
        return tuple(self.part(part).name for part in _PARTS.get(self.variant, ()))


def load_images_and_truth(arguments: argparse.Namespace, data: PreparedData) -> Images:
    """Return `--images` training images, the same share of every class, with the labels of `--labels` and `--truth`.

    If `prepare` planted wrong labels, its labels are audited against the true ones.

    Raises:
        InputError: a file does not fit the data, no label is wrong, or the number of images cannot be sampled.
    """
    paths = DataPaths(root=arguments.data)
    prepared, planted_truth = data.train.labels, read_true_labels(paths)
    truth = _labels(
        arguments.truth, "--truth", prepared if planted_truth is None else planted_truth, paths, data.class_names
    )
    labels = _labels(arguments.labels, "--labels", prepared, paths, data.class_names)
    mask = _stratified_mask(truth, arguments.images)
    audited = arguments.labels is not None or arguments.truth is not None or planted_truth is not None
    if audited and (labels[mask] == truth[mask]).all():
        file = arguments.labels or arguments.truth or paths.manifest("train")
        raise InputError(f"{file}: no label differs from the truth; give labels with errors")
    return Images(
        mask=mask,
        # Indexing by a mask copies the images; if all take part, keep their memory map.
        pixels=data.train.images if mask.all() else data.train.images[mask],
        truth=truth[mask],
        data_labels=labels[mask] if audited else None,
        class_names=data.class_names,
    )


def iter_cases(arguments: argparse.Namespace, images: Images) -> Iterator[Case]:
    """Yield the cases: the labels of the data first if they are audited, then every kind of noise at every rate.

    Each comes with every variant of the extractor and every number of folds. The default is all kinds of wrong labels
    if the labels of the data are not audited, else none.
    """
    kinds = arguments.kinds
    if kinds is None:
        kinds = KINDS if images.data_labels is None else ()
    audits = [] if images.data_labels is None else [("given", 0.0)]
    noisy = [kind for kind in kinds if kind != CLEAN]
    audits += [*((CLEAN, 0.0) for kind in kinds if kind == CLEAN), *product(noisy, arguments.rates)]
    for (kind, rate), variant, folds in product(audits, arguments.variants, arguments.folds):
        yield Case(kind=kind, rate=rate, variant=variant, folds=folds, drop_share=arguments.drop_share)


def make_labels(case: Case, images: Images, *, seed: int) -> NDArray[np.int64]:
    """Return the labels (N,) to train on; one kind and rate give the same labels for all extractors.

    Raises:
        InputError: the data lack a class of the pairs, or the rate cannot be reached.
    """
    if case.kind == CLEAN:
        return images.truth
    if case.kind not in KINDS:
        assert images.data_labels is not None
        return images.data_labels
    kind = KINDS[KINDS.index(case.kind)]
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    partners = _cifar10_partners(images.class_names) if kind == "pair" else None
    noisy = plant_label_noise(images.truth, kind, case.rate, images=images.pixels, rng=rng, partners=partners)
    if (noisy == images.truth).all():
        raise InputError(
            f"--rates: {case.rate:g} of {len(noisy)} images gives no wrong label; increase it, or --images"
        )
    return noisy


def _stratified_mask(truth: NDArray[np.int64], count: int | None) -> NDArray[np.bool_]:
    """Return a mask (M,) of `count` images, the same share of each class; None for all."""
    n = len(truth)
    mask = np.ones(n, dtype=np.bool_)
    if count is None or count == n:
        return mask
    try:
        _, left_out = train_test_split(
            np.arange(n), train_size=count, test_size=n - count, stratify=truth, random_state=0
        )
    except ValueError as error:
        raise InputError(f"--images: {count} of {n} cannot be sampled: {error}; give another number") from None
    mask[left_out] = False
    return mask


def _cifar10_partners(class_names: Sequence[str]) -> dict[int, int]:
    missing = sorted({*CIFAR10_PAIRS, *CIFAR10_PAIRS.values()} - set(class_names))
    if missing:
        raise InputError(f"--kinds: pair needs the classes of CIFAR-10, and the data have no {missing[0]}; omit pair")
    return {class_names.index(true): class_names.index(wrong) for true, wrong in CIFAR10_PAIRS.items()}


def _labels(
    file: Path | None, key: str, prepared: NDArray[np.int64], paths: DataPaths, class_names: Sequence[str]
) -> NDArray[np.int64]:
    """Return the prepared labels (M,), with those that the file lists replaced."""
    labels = prepared.copy()
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
