"""Batches cut on the device against plain NumPy, one image at a time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.datasets.augmentation import sample_augmentation
from pipeline.datasets.resident import ResidentImages

_MEAN, _STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
_CPU = torch.device("cpu")


def _pixels(n: int, side: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (n, side, side, 3)).astype(np.uint8)


def _resident(pixels: NDArray[np.uint8], **options: Any) -> ResidentImages:
    return ResidentImages(pixels, mean=_MEAN, std=_STD, device=_CPU, **{"crop_size": pixels.shape[1], **options})


def _by_hand(image: NDArray[np.uint8], *, padding: int, crop: int, top: int, left: int, flip: bool) -> Any:
    """(3, crop, crop): pad with zeros, cut, mirror, then (pixel / 255 - mean) / std."""
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    cut = padded[top : top + crop, left : left + crop]
    if flip:
        cut = cut[:, ::-1]
    return ((cut / 255 - np.array(_MEAN)) / np.array(_STD)).transpose(2, 0, 1)


@given(
    side=st.integers(2, 9),
    padding=st.integers(0, 3),
    less=st.integers(0, 5),
    flip=st.booleans(),
    seed=st.integers(0, 1000),
    wanted=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=12),
)
def test_training_batches_are_crops_flips_and_normalization(
    side: int, padding: int, less: int, flip: bool, seed: int, wanted: list[tuple[int, int]]
) -> None:
    crop = max(1, side - less)
    pixels = _pixels(6, side, seed)
    images = _resident(pixels, crop_size=crop, crop_padding=padding, flip=flip, seed=seed)
    ids, epochs = (np.array(column) for column in zip(*wanted, strict=True))
    batch = images.training_batch(ids, epochs)
    for got, image, epoch in zip(batch, ids, epochs, strict=True):
        draws = sample_augmentation(6, seed=seed, epoch=int(epoch), n_offsets=side + 2 * padding - crop + 1, flip=flip)
        top, left = draws.offsets[image]
        expected = _by_hand(
            pixels[image], padding=padding, crop=crop, top=top, left=left, flip=bool(draws.flips[image])
        )
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-6)


def test_what_happens_to_an_image_does_not_depend_on_its_batch() -> None:
    images, again = (_resident(_pixels(20, 8), crop_padding=2, flip=True, seed=3) for _ in range(2))
    ids, epochs = np.arange(20), np.arange(20) % 3
    whole = images.training_batch(ids, epochs)
    # In another order, and with epochs coming back that were dropped from the cache.
    for row in np.random.default_rng(0).permutation(20):
        assert torch.equal(again.training_batch(ids[row : row + 1], epochs[row : row + 1])[0], whole[row])


@pytest.mark.parametrize(("side", "crop", "start"), [(8, 8, 0), (8, 6, 1), (9, 6, 1), (9, 5, 2), (8, 1, 3)])
def test_evaluation_takes_the_center(side: int, crop: int, start: int) -> None:
    pixels = _pixels(3, side)
    images = _resident(pixels, crop_size=crop, flip=True, seed=5)
    for got, image in zip(images.evaluation_batch(np.array([2, 0])), (2, 0), strict=True):
        expected = _by_hand(pixels[image], padding=0, crop=crop, top=start, left=start, flip=False)
        np.testing.assert_allclose(got.numpy(), expected, atol=1e-6)


def test_evaluation_of_padded_images_is_the_image() -> None:
    pixels = _pixels(3, 8)
    plain, padded = _resident(pixels), _resident(pixels, crop_padding=2, crop_size=8)
    assert torch.equal(plain.evaluation_batch(np.arange(3)), padded.evaluation_batch(np.arange(3)))


def test_padding_is_black() -> None:
    white = np.full((1, 4, 4, 3), 255, dtype=np.uint8)
    images = _resident(white, crop_padding=2, crop_size=8)
    (batch,) = images.training_batch(np.array([0]), np.array([0]))
    black = torch.tensor([-mean / std for mean, std in zip(_MEAN, _STD, strict=True)])
    torch.testing.assert_close(batch[:, 0, 0], black)
    torch.testing.assert_close(batch[:, 1, 5], black)
    assert bool((batch[:, 2:6, 2:6] > batch[:, :1, :1]).all())


def test_batches_are_float32_in_channels_last_order() -> None:
    images = _resident(_pixels(5, 8), crop_size=6)
    batch = images.training_batch(np.arange(4), np.zeros(4, dtype=np.int64))
    assert batch.shape == (4, 3, 6, 6)
    assert batch.dtype == torch.float32
    assert batch.is_contiguous(memory_format=torch.channels_last)


def test_a_mapped_read_only_file_is_copied(tmp_path: Path) -> None:
    """Without a warning, whole, and without a tie to the file."""
    pixels = _pixels(4100, 2)
    np.save(tmp_path / "images.npy", pixels)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    images = _resident(mapped)
    assert len(images) == 4100
    batch = images.evaluation_batch(np.arange(4100)).numpy()
    expected = (pixels / 255 - np.array(_MEAN)) / np.array(_STD)
    np.testing.assert_allclose(batch, expected.transpose(0, 3, 1, 2), atol=1e-6)


def test_a_crop_larger_than_the_image_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        _resident(_pixels(1, 4), crop_size=7, crop_padding=1)


def test_another_seed_shares_the_pixels_with_other_crops() -> None:
    pixels = _pixels(12, 8)
    ids, epochs = np.arange(12), np.zeros(12, dtype=np.int64)
    first = _resident(pixels, crop_size=8, crop_padding=2, flip=True, seed=1)
    before = first.training_batch(ids, epochs)
    other = first.with_seed(2)
    fresh = _resident(pixels, crop_size=8, crop_padding=2, flip=True, seed=2)
    assert other._pixels.data_ptr() == first._pixels.data_ptr()
    assert torch.equal(other.training_batch(ids, epochs), fresh.training_batch(ids, epochs))
    assert torch.equal(first.training_batch(ids, epochs), before)
