"""`extract`: penultimate features of all images."""

from pipeline.config.base import Positive, Section


class ExtractConfig(Section):
    """The `extract` section. `batch_size`: images per forward pass; bounds the memory."""

    batch_size: Positive = 256
