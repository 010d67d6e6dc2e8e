"""`extract`: penultimate features of all images."""

from pipeline.config.base import Positive, Section


class ExtractConfig(Section):
    """The `extract` section.

    Attributes:
        batch_size: images per forward pass; bounds the memory.
        mirror: pass each image and its mirror image, and take the means of their features and
            probabilities, at twice the time; for pictures whose left and right mean nothing.
    """

    batch_size: Positive = 256
    mirror: bool = False
