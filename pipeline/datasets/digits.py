"""scikit-learn's bundled handwritten digits: 1,797 real images that need no download."""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipeline.datasets.image_set import DatasetOptions, DecodedImage, ImageSet, Sample
from pipeline.datasets.images import resize
from pipeline.datasets.splits import draw_test

_WHITE = 16
"""The brightest value of the original pixels."""


def open_digits(options: DatasetOptions) -> ImageSet:
    """The digits, `test_share` of each class held out; `sha256` is of the 8x8 original values."""
    from sklearn.datasets import load_digits  # a second to import; only this data set pays it

    assert options.test_share is not None
    bunch = load_digits()
    values: NDArray[np.uint8] = bunch.images.astype(np.uint8)
    samples = [Sample(path=f"digits/{i:04d}", label=int(label)) for i, label in enumerate(bunch.target)]
    held_out = draw_test(
        [sample.path for sample in samples], [sample.label for sample in samples], options.test_share, seed=options.seed
    )

    def decode() -> Iterator[DecodedImage]:
        for sample, image in zip(samples, values, strict=True):
            grey = Image.fromarray(np.rint(image * (255 / _WHITE)).astype(np.uint8))
            yield DecodedImage(
                path=sample.path,
                pixels=resize(grey.convert("RGB"), options.image_size),
                sha256=hashlib.sha256(image.tobytes()).hexdigest(),
            )

    return ImageSet(
        class_names=tuple(str(name) for name in bunch.target_names),
        train=tuple(sample for sample, out in zip(samples, held_out, strict=True) if not out),
        test=tuple(sample for sample, out in zip(samples, held_out, strict=True) if out),
        decode=decode,
    )
