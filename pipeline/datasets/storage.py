"""Writing a data set's pixels: row by row into memory-mapped files, or nothing at all."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.artifacts.arrays import create_array
from pipeline.datasets.image_set import SPLITS, ImageSet, ProgressDisplay, UnreadableImage, check_classes
from pipeline.errors import InputError


@dataclass(frozen=True, kw_only=True)
class StoredImages:
    """What was written.

    Attributes:
        images: the data set without the unreadable images.
        sha256: by split, in row order.
        unreadable: reason by path; these were left out.
    """

    images: ImageSet
    sha256: dict[str, list[str]]
    unreadable: dict[str, str]


def store_images(
    open_images: Callable[[frozenset[str]], ImageSet],
    arrays: Mapping[str, Path],
    *,
    replaced: Sequence[Path],
    source: str,
    image_size: int,
    skip_unreadable: bool,
    progress: ProgressDisplay,
) -> StoredImages:
    """Decode a data set into `arrays`, by split a path for uint8 (N, S, S, 3).

    Both files appear once every image is decoded. Where unreadable images are found and shall be
    skipped, the data set is opened and decoded again without them, since they shift rows and splits.

    Args:
        open_images: gives the data set without the paths it receives.
        replaced: files that belong to earlier arrays; deleted when the new ones appear, so that a
            run killed before it wrote theirs leaves none that does not fit.
        source: what to call the data set in messages.

    Raises:
        InputError: unreadable images that shall not be skipped, too few images, a full disk.
    """
    unreadable: dict[str, str] = {}
    while True:
        images = open_images(frozenset(unreadable))
        check_classes(images, source)
        try:
            sha256 = _write(images, arrays, replaced, image_size, progress)
        except _UnreadableImagesError as error:
            if not skip_unreadable:
                raise InputError(_describe(error.reasons, source)) from None
            unreadable |= error.reasons
            continue
        return StoredImages(images=images, sha256=sha256, unreadable=dict(sorted(unreadable.items())))


class _UnreadableImagesError(Exception):
    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__()
        self.reasons = reasons


def _write(
    images: ImageSet,
    arrays: Mapping[str, Path],
    replaced: Sequence[Path],
    image_size: int,
    progress: ProgressDisplay,
) -> dict[str, list[str]]:
    """Returns the hashes; on unreadable images it raises after the last, and no file appears."""
    place = {sample.path: (split, row) for split in SPLITS for row, sample in enumerate(images.samples(split))}
    sha256 = {split: [""] * len(images.samples(split)) for split in SPLITS}
    reasons: dict[str, str] = {}
    with ExitStack() as stack:
        out = {
            split: stack.enter_context(
                create_array(arrays[split], (len(images.samples(split)), image_size, image_size, 3), np.uint8)
            )
            for split in SPLITS
        }
        bar = stack.enter_context(progress("prepare images", len(place), "images"))
        for image in images.decode():
            if isinstance(image, UnreadableImage):
                reasons[image.path] = image.reason
            else:
                split, row = place[image.path]
                out[split][row], sha256[split][row] = image.pixels, image.sha256
            bar.update()
        if reasons:
            raise _UnreadableImagesError(reasons)
        assert all(all(hashes) for hashes in sha256.values()), "an image was not decoded"
        for path in replaced:
            path.unlink(missing_ok=True)
    return sha256


def _describe(reasons: Mapping[str, str], source: str) -> str:
    path = min(reasons)
    more = f" (and {len(reasons) - 1} more unreadable files)" if len(reasons) > 1 else ""
    return (
        f"{source}: {path}: {reasons[path]}{more}; mend or remove it, "
        "or set `prepare.unreadable: skip` to leave such files out"
    )
