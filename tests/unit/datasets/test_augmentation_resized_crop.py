"""Rectangles against torchvision's."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import ks_2samp
from torchvision.transforms import RandomResizedCrop as TorchvisionCrop

from pipeline.datasets.augmentation import RandomResizedCrop, center_box
from pipeline.datasets.decode import CropBox

_SIDES = st.integers(1, 600)
_Boxes = NDArray[np.float64]


def _boxes(crop: RandomResizedCrop, n: int, width: int, height: int) -> list[CropBox]:
    return [crop.sample(sample_id, 0)[0](width, height) for sample_id in range(n)]


@given(
    width=_SIDES,
    height=_SIDES,
    scale=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)),
    ratio=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)),
    seed=st.integers(0, 2**32),
    sample_id=st.integers(0, 2**40),
    epoch=st.integers(0, 10**6),
)
def test_rectangles_lie_in_the_image(
    width: int,
    height: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    seed: int,
    sample_id: int,
    epoch: int,
) -> None:
    crop = RandomResizedCrop(scale=(min(scale), max(scale)), ratio=(min(ratio), max(ratio)), flip=True, seed=seed)
    left, top, right, bottom = crop.sample(sample_id, epoch)[0](width, height)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    assert all(edge == int(edge) for edge in (left, top, right, bottom))


@pytest.mark.parametrize(("width", "height"), [(500, 375), (224, 224), (300, 900)])
@pytest.mark.parametrize("options", [{}, {"scale": (0.3, 0.5), "ratio": (0.9, 2.0)}])
def test_distribution_is_torchvisions(width: int, height: int, options: dict[str, tuple[float, float]]) -> None:
    """Two-sample Kolmogorov-Smirnov tests of each edge, the area and the aspect ratio."""
    n = 2000
    ours: _Boxes = np.array(_boxes(RandomResizedCrop(seed=1, **options), n, width, height))  # type: ignore[arg-type]
    image, reference = torch.empty(3, height, width), TorchvisionCrop(8, **options)
    torch.manual_seed(0)
    rows = [reference.get_params(image, list(reference.scale), list(reference.ratio)) for _ in range(n)]
    theirs = np.array([(left, top, left + w, top + h) for top, left, h, w in rows])
    for measure in (*(lambda boxes, i=i: boxes[:, i] for i in range(4)), _areas, _ratios):
        assert ks_2samp(measure(ours), measure(theirs)).pvalue > 0.001


def _areas(boxes: _Boxes) -> _Boxes:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _ratios(boxes: _Boxes) -> _Boxes:
    return (boxes[:, 2] - boxes[:, 0]) / (boxes[:, 3] - boxes[:, 1])


@pytest.mark.parametrize(("width", "height"), [(1000, 10), (10, 1000), (1001, 10), (1, 50), (50, 1)])
def test_where_no_rectangle_fits_the_center_is_torchvisions(width: int, height: int) -> None:
    ours = _boxes(RandomResizedCrop(scale=(0.5, 1.0)), 1, width, height)[0]
    top, left, h, w = TorchvisionCrop.get_params(torch.empty(3, height, width), [0.5, 1.0], [3 / 4, 4 / 3])
    assert ours == (left, top, left + w, top + h)


def test_a_crop_depends_on_seed_epoch_and_sample_alone() -> None:
    keys = [(seed, epoch, sample_id) for seed in range(3) for epoch in range(3) for sample_id in range(50)]
    boxes = [RandomResizedCrop(seed=seed).sample(sample_id, epoch)[0](5000, 4000) for seed, epoch, sample_id in keys]
    assert len(set(boxes)) == len(keys)
    again = [
        RandomResizedCrop(seed=seed).sample(sample_id, epoch)[0](5000, 4000) for seed, epoch, sample_id in keys[::-1]
    ]
    assert again[::-1] == boxes


def test_half_of_the_images_are_mirrored_whatever_their_crop() -> None:
    crop = RandomResizedCrop(flip=True)
    boxes, mirrored = zip(
        *((draw(500, 400), mirror) for draw, mirror in (crop.sample(i, 0) for i in range(4000))), strict=True
    )
    assert abs(np.mean(mirrored) - 0.5) < 0.03
    left = np.array([box[0] for box in boxes])
    assert abs(np.corrcoef(left, mirrored)[0, 1]) < 0.06
    assert not any(RandomResizedCrop(flip=False).sample(i, 0)[1] for i in range(100))


@pytest.mark.parametrize(
    "options", [{"scale": (0.0, 1.0)}, {"scale": (0.5, 0.4)}, {"scale": (0.5, 1.1)}, {"ratio": (2, 1)}]
)
def test_impossible_settings_are_a_bug(options: dict[str, tuple[float, float]]) -> None:
    with pytest.raises(AssertionError):
        RandomResizedCrop(**options)  # type: ignore[arg-type]


def test_center_of_a_landscape() -> None:
    """512 x 256 at crop size 224: scaled by 1, so the crop is 224 pixels wide in the middle."""
    assert center_box(512, 256, crop_size=224) == (144, 16, 368, 240)


@given(width=_SIDES, height=_SIDES, crop_size=st.integers(1, 300))
def test_the_center_lies_in_the_image(width: int, height: int, crop_size: int) -> None:
    left, top, right, bottom = center_box(width, height, crop_size=crop_size)
    assert 0 <= left < right <= width + 1e-9
    assert 0 <= top < bottom <= height + 1e-9
