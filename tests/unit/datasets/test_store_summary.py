"""Counts, channel statistics and duplicates, against values computed the plain way."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline.datasets.store
from pipeline.datasets.image_set import Sample
from pipeline.datasets.store import channel_statistics, find_duplicates


@settings(deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(1, 9), size=st.integers(1, 6), block=st.integers(1, 400))
def test_channel_statistics_equal_numpys_for_any_block_size(seed: int, n: int, size: int, block: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.datasets.store, "_BLOCK_BYTES", block)
        mean, std = channel_statistics(pixels)
    scaled = pixels.astype(np.float64) / 255
    np.testing.assert_allclose(mean, scaled.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std, scaled.std(axis=(0, 1, 2)), rtol=1e-9, atol=1e-12)


def test_channel_statistics_of_a_memory_map(tmp_path: Path) -> None:
    pixels = np.memmap(tmp_path / "pixels", dtype=np.uint8, mode="w+", shape=(2, 1, 1, 3))
    pixels[...] = np.array([[[[0, 51, 255]]], [[[255, 51, 255]]]])
    mean, std = channel_statistics(pixels)
    assert mean == pytest.approx([0.5, 0.2, 1.0])
    assert std == pytest.approx([0.5, 0.0, 0.0])


def _find(train: str, test: str) -> dict[str, tuple[int, list[list[str]]]]:
    """One image a letter, its content; path = split and position."""
    samples = {
        split: [Sample(path=f"{split}{i}", label=0) for i in range(len(contents))]
        for split, contents in (("train", train), ("test", test))
    }
    duplicates = find_duplicates(samples, {"train": list(train), "test": list(test)})
    return {name: (entry["count"], entry["pairs"]) for name, entry in duplicates.items()}


def test_duplicates() -> None:
    assert _find("abaca", "xbyxa") == {
        "within_train": (2, [["train0", "train2"], ["train0", "train4"]]),
        "within_test": (1, [["test0", "test3"]]),
        "across": (2, [["train1", "test1"], ["train0", "test4"]]),
    }


def test_no_duplicates() -> None:
    assert _find("abc", "de") == {"within_train": (0, []), "within_test": (0, []), "across": (0, [])}


def test_all_are_counted_and_twenty_shown() -> None:
    count, pairs = _find("a" * 51, "b")["within_train"]
    assert count == 50
    assert len(pairs) == 20
