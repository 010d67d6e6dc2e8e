"""A share of the training images of each class, for a first look or a small machine."""

from collections.abc import Iterator
from dataclasses import replace

from pipeline.datasets.image_set import DecodedImage, ImageSet, UnreadableImage
from pipeline.datasets.splits import draw_part


def thin(images: ImageSet, share: float, *, seed: int) -> tuple[ImageSet, frozenset[str]]:
    """The data set with that share of each class's training images, and the paths of the others.

    A smaller share of the same seed is a part of a larger one. Test images stay.

    Args:
        share: above 0 and below 1; at least two images of a class stay where it has two, to train and to tune on.
    """
    paths = [sample.path for sample in images.train]
    drawn = draw_part(paths, [sample.label for sample in images.train], share, seed=seed)
    left_out = frozenset(path for path, stays in zip(paths, drawn, strict=True) if not stays)

    def decode() -> Iterator[DecodedImage | UnreadableImage]:
        return (image for image in images.decode() if image.path not in left_out)

    train = tuple(sample for sample in images.train if sample.path not in left_out)
    return replace(images, train=train, decode=decode), left_out
