"""Look at a folder of images with the readers of the stage `prepare`: counts, sizes, broken files, exact duplicates."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline.config.prepare import PrepareConfig
from pipeline.datasets.image_folder import open_image_folder
from pipeline.datasets.image_set import (
    SPLITS,
    DatasetOptions,
    ImageSet,
    ProgressFactory,
    UnreadableImage,
    check_classes,
)
from pipeline.datasets.store import find_duplicates
from pipeline.errors import InputError

# Sides of this many images give the median within a few percent.
_MEASURED_IMAGES = 200
_DECODED_SIZE = 8


@dataclass(frozen=True, kw_only=True)
class FolderSurvey:
    """What a folder or archive of images holds.

    Attributes:
        class_names: sorted.
        train: readable training images of each class.
        test: readable test images of each class, held out with `test_size` if the folder has no test split.
        test_size: fraction of each class that was held out; None for a folder with a test split.
        unreadable: reason by path.
        duplicates: number of images that are copies of an earlier one, by `within_train`, `within_test`, `across`.
        contradictions: pairs of paths with equal content and different classes.
        short_side: median over images of the shorter side in pixels; None for archives and Parquet shards.
        description: how the labels were read; empty for class folders.
    """

    class_names: tuple[str, ...]
    train: tuple[int, ...]
    test: tuple[int, ...]
    test_size: float | None
    unreadable: dict[str, str]
    duplicates: dict[str, int]
    contradictions: tuple[tuple[str, str], ...]
    short_side: int | None
    description: str

    @property
    def n_train(self) -> int:
        """Number of training images."""
        return sum(self.train)

    @property
    def n_test(self) -> int:
        """Number of test images."""
        return sum(self.test)


def survey_folder(path: Path, *, choose_test_size: Callable[[int], float], progress: ProgressFactory) -> FolderSurvey:
    """Decode every image of a folder or archive once, and count.

    Args:
        choose_test_size: from the number of images to the fraction to hold out, if there is no test split.

    Raises:
        InputError: it is no data set, or a class has too few readable images.
    """
    options = DatasetOptions(
        path=path,
        image_size=_DECODED_SIZE,
        test_size=None,
        max_megapixels=PrepareConfig.model_fields["max_megapixels"].default,
        seed=0,
        downloads=Path(),
        progress=progress,
    )
    options = replace(options, test_size=_test_size(options, choose_test_size))
    images = open_image_folder(options)
    sha256: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    with progress(f"look at {path}", len(images.train) + len(images.test), "images") as bar:
        for image in images.decode():
            if isinstance(image, UnreadableImage):
                unreadable[image.path] = image.reason
            else:
                sha256[image.path] = image.sha256
            bar.update()
    # Without the unreadable files, since leaving them out changes the split.
    images = open_image_folder(replace(options, exclude=frozenset(unreadable)))
    check_classes(images, str(path))
    hashes = {split: [sha256[sample.path] for sample in images.samples(split)] for split in SPLITS}
    pairs = find_duplicates({split: images.samples(split) for split in SPLITS}, hashes)
    return FolderSurvey(
        class_names=images.class_names,
        train=_counts(images, "train"),
        test=_counts(images, "test"),
        test_size=options.test_size,
        unreadable=dict(sorted(unreadable.items())),
        duplicates={name: int(found["count"]) for name, found in pairs.items()},
        contradictions=_contradictions(images, sha256),
        short_side=_short_side(path, images),
        description=images.description,
    )


def _test_size(options: DatasetOptions, choose: Callable[[int], float]) -> float | None:
    """Return the fraction to hold out; None if there is a test split."""
    try:
        open_image_folder(options)
    except InputError as error:
        if error.key != "prepare.test_size":
            raise
        images = open_image_folder(replace(options, test_size=0.5))
        return choose(len(images.train) + len(images.test))
    return None


def _counts(images: ImageSet, split: str) -> tuple[int, ...]:
    return tuple(np.bincount(images.labels(split), minlength=len(images.class_names)).tolist())


def _contradictions(images: ImageSet, sha256: dict[str, str]) -> tuple[tuple[str, str], ...]:
    first: dict[str, tuple[str, int]] = {}
    found: list[tuple[str, str]] = []
    for split in SPLITS:
        for sample in images.samples(split):
            path, label = first.setdefault(sha256[sample.path], (sample.path, sample.label))
            if label != sample.label:
                found.append((min(path, sample.path), max(path, sample.path)))
    return tuple(sorted(found))


def _short_side(path: Path, images: ImageSet) -> int | None:
    if images.files_in is None:
        return None
    samples = (*images.train, *images.test)
    sides: Counter[int] = Counter()
    for sample in samples[:: -(-len(samples) // _MEASURED_IMAGES)]:
        with Image.open(path / images.files_in / sample.path) as image:
            sides[min(image.size)] += 1
    return int(np.median(list(sides.elements())))
