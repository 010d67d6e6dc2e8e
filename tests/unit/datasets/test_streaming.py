"""Batches from files: the same bits for any number of threads, any cut into batches, any start."""

import gc
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as T
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pipeline.batching import SampleStream
from pipeline.datasets.augmentation import RandomResizedCrop
from pipeline.datasets.decode import decode_region
from pipeline.datasets.streaming import StreamingImages
from pipeline.errors import DataError, InputError
from tests.fixtures.images import encode, image_files, photo

_MEAN, _STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
_N = 24
_SIZES = [(20, 30), (64, 48), (9, 9), (130, 200)]
_Ids = NDArray[np.int64]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Images of several sizes, PNG and JPEG."""
    folder = tmp_path_factory.mktemp("images")
    return [_write(folder / f"{i}.img", photo(i, _SIZES[i % 4], ("PNG", "JPEG")[i % 3 == 0])) for i in range(_N)]


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _streaming(paths: list[Path], **options: Any) -> StreamingImages:
    defaults: dict[str, Any] = {
        "mean": _MEAN, "std": _STD, "crop_size": 8, "random_crop": RandomResizedCrop(flip=True, seed=3),
        "workers": 2, "device": torch.device("cpu"),
    }  # fmt: skip
    return StreamingImages(image_files(paths), **{**defaults, **options})


def _requests(ids: _Ids, epochs: _Ids, size: int) -> list[tuple[_Ids, _Ids]]:
    return [(ids[start : start + size], epochs[start : start + size]) for start in range(0, len(ids), size)]


def _until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each image decoded."""
    calls: list[int] = []

    def counting(data: bytes, *arguments: Any, **options: Any) -> Any:
        calls.append(len(data))
        return decode_region(data, *arguments, **options)

    monkeypatch.setattr("pipeline.datasets.streaming.decode_region", counting)
    return calls


@settings(deadline=None, max_examples=40)
@given(
    workers=st.integers(0, 2),
    announced=st.integers(1, 30),
    taken=st.integers(1, 30),
    ahead=st.integers(1, 3),
    start=st.integers(0, 2 * _N - 1),
    skipped=st.integers(0, 5),
)
def test_bits_depend_on_sample_and_epoch_alone(
    files: list[Path], workers: int, announced: int, taken: int, ahead: int, start: int, skipped: int
) -> None:
    """Any threads, batches announced and taken, a start in the middle; even announcements of other images."""
    order = np.random.default_rng(0)
    ids = np.concatenate([order.permutation(_N), order.permutation(_N)])
    epochs = np.repeat([0, 1], _N)
    reference = _streaming(files, workers=0)
    expected = [reference.training_batch(ids[i : i + 1], epochs[i : i + 1]) for i in range(start, 2 * _N)]
    images = _streaming(files, workers=workers, batches_ahead=ahead)
    with images.prefetch(_requests(ids[start + skipped :], epochs[start + skipped :], announced)):
        got = [images.training_batch(*request) for request in _requests(ids[start:], epochs[start:], taken)]
    assert torch.equal(torch.cat(got), torch.cat(expected))


def test_training_pixels_by_hand(files: list[Path]) -> None:
    """Cut, scaled, mirrored, then (pixel / 255 - mean) / std."""
    crop = RandomResizedCrop(flip=True, seed=5)
    images = _streaming(files, random_crop=crop)
    ids = np.array([1, 2, 4, 5, 7, 8])  # PNG: exact
    batch = images.training_batch(ids, np.full(6, 9))
    for got, sample_id in zip(batch, ids, strict=True):
        with Image.open(files[sample_id]) as image:
            box, mirror = crop.sample(int(sample_id), 9)
            part = image.resize((8, 8), Image.Resampling.BILINEAR, box=box(*image.size))
        pixels = np.asarray(part)[:, ::-1] if mirror else np.asarray(part)
        expected = (pixels / 255 - np.array(_MEAN)) / np.array(_STD)
        np.testing.assert_allclose(got.permute(1, 2, 0).numpy(), expected, atol=1e-6)
    mirrors = {crop.sample(int(sample_id), 9)[1] for sample_id in ids}
    assert mirrors == {False, True}


def test_batches_are_float32_in_channels_last_order(files: list[Path]) -> None:
    images = _streaming(files)
    assert len(images) == _N
    for batch in (
        images.training_batch(np.arange(4), np.zeros(4, dtype=np.int64)),
        images.evaluation_batch(np.arange(4)),
    ):
        assert batch.shape == (4, 3, 8, 8)
        assert batch.dtype == torch.float32
        assert batch.is_contiguous(memory_format=torch.channels_last)
    assert images.evaluation_batch(np.arange(0)).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("crop_size", [56, 33])
@pytest.mark.parametrize("size", [(75, 50), (50, 75), (64, 64), (200, 131), (20, 30), (301, 40)])
def test_evaluation_is_torchvisions(tmp_path: Path, size: tuple[int, int], crop_size: int) -> None:
    smooth = Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 5, 3), dtype=np.uint8))
    path = _write(tmp_path / "a.png", encode(smooth.resize(size, Image.Resampling.BICUBIC)))
    steps = [T.Resize(round(crop_size * 256 / 224)), T.CenterCrop(crop_size), T.ToTensor(), T.Normalize(_MEAN, _STD)]
    with Image.open(path) as image:
        expected = T.Compose(steps)(image)
    (got,) = _streaming([path], crop_size=crop_size).evaluation_batch(np.array([0]))
    # Pillow rounds after each axis: two levels of 255 at the very most.
    torch.testing.assert_close(got, expected, atol=2.01 / 255 / min(_STD), rtol=0)
    assert float((got - expected).abs().mean()) < 0.1 / 255 / min(_STD)


def test_evaluation_may_be_prefetched_within_training(files: list[Path], decoded: list[int]) -> None:
    images, plain = _streaming(files), _streaming(files, workers=0)
    epochs = np.zeros(_N, dtype=np.int64)
    expected = plain.training_batch(np.arange(_N), epochs), plain.evaluation_batch(np.arange(_N))
    decoded.clear()
    training: list[Tensor] = []
    with images.prefetch(_requests(np.arange(_N), epochs, 4)):
        for ids, zeros in _requests(np.arange(_N), epochs, 4):
            training.append(images.training_batch(ids, zeros))
            if ids[0] == 8:
                halves = np.arange(_N).reshape(2, -1)
                with images.prefetch((half, None) for half in halves):
                    evaluated = torch.cat([images.evaluation_batch(half) for half in halves])
    assert torch.equal(torch.cat(training), expected[0])
    assert torch.equal(evaluated, expected[1])
    assert len(decoded) == 2 * _N


def test_an_epoch_in_the_order_of_the_stream(files: list[Path], decoded: list[int]) -> None:
    """Announced whole, taken in micro-batches; stopped and resumed in the middle; nothing decoded twice."""
    members = np.arange(_N) != 5
    stream, batch_size = SampleStream(members, seed=1), 7
    plain = _streaming(files, workers=0)
    whole = [plain.training_batch(*stream.samples(step * batch_size, batch_size)) for step in range(7)]
    decoded.clear()

    def run(first: int, last: int) -> list[Tensor]:
        images = _streaming(files)
        batches = []
        with images.prefetch(stream.samples(step * batch_size, batch_size) for step in range(first, last)):
            for step in range(first, last):
                ids, epochs = stream.samples(step * batch_size, batch_size)
                parts = [images.training_batch(ids[part], epochs[part]) for part in (slice(0, 3), slice(3, 7))]
                batches.append(torch.cat(parts))
        return batches

    for got, expected in zip(run(0, 2) + run(2, 7), whole, strict=True):
        assert torch.equal(got, expected)
    assert len(decoded) == 7 * batch_size
    seen = np.concatenate([stream.samples(step * batch_size, batch_size)[0] for step in range(7)])[: members.sum()]
    assert sorted(seen) == list(np.flatnonzero(members))


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_stated_number_of_batches_is_decoded_ahead(files: list[Path], decoded: list[int], ahead: int) -> None:
    """This many are decoded ahead, and no more: memory is bounded."""
    announced = 0

    def endless() -> Iterator[tuple[_Ids, _Ids]]:
        nonlocal announced
        while True:
            announced += 1
            yield np.arange(4), np.full(4, announced - 1)

    images = _streaming(files, batches_ahead=ahead)
    with images.prefetch(endless()):
        for taken in range(5):
            assert announced == taken + ahead
            assert _until(lambda taken=taken: len(decoded) == 4 * (taken + ahead))  # type: ignore[misc]
            images.training_batch(np.arange(2), np.full(2, taken))
            assert announced == taken + ahead
            images.training_batch(np.arange(2, 4), np.full(2, taken))
    assert len(decoded) <= 4 * announced


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-90]),
        lambda path: path.write_bytes(encode(Image.new("RGB", (20, 30)))),
        Path.unlink,
    ],
    ids=["truncated", "another", "missing"],
)
def test_a_file_that_changed_is_named_when_its_turn_comes(
    tmp_path: Path, workers: int, damage: Callable[[Path], object]
) -> None:
    paths = [_write(tmp_path / f"{i}.jpg", photo(i, file_format="JPEG")) for i in range(6)]
    images, zeros = _streaming(paths, workers=workers), np.zeros(2, dtype=np.int64)
    damage(paths[3])
    batches = np.arange(6).reshape(3, 2)

    def run() -> None:
        with images.prefetch((ids, zeros) for ids in batches):
            images.training_batch(batches[0], zeros)
            with pytest.raises(InputError) as caught:
                images.training_batch(batches[1], zeros)
            assert caught.value.key == str(paths[3])
            raise caught.value

    with pytest.raises(InputError):
        run()
    # What else there is can still be had.
    images.training_batch(batches[2], zeros)
    with pytest.raises(InputError) as refused:
        images.evaluation_batch(batches[1])
    assert refused.value.key == str(paths[3])


def test_a_file_that_this_pillow_cannot_read_is_named(tmp_path: Path) -> None:
    """Another build of it could when the file was prepared."""
    path = _write(tmp_path / "a.jpg", photo(0, file_format="JPEG")[:-90])
    with pytest.raises(DataError) as refused:
        _streaming([path]).evaluation_batch(np.array([0]))
    assert refused.value.key == str(path)


def test_another_seed_has_other_crops_of_the_same_files(files: list[Path]) -> None:
    images = _streaming(files, random_crop=RandomResizedCrop(seed=3))
    request = np.arange(_N), np.zeros(_N, dtype=np.int64)
    with images.prefetch([request]):
        with_seed = images.with_seed(4)
        expected = _streaming(files, random_crop=RandomResizedCrop(seed=4)).training_batch(*request)
        assert torch.equal(with_seed.training_batch(*request), expected)
        assert not torch.equal(images.training_batch(*request), expected)


def test_what_was_prefetched_and_not_taken_is_dropped(files: list[Path], decoded: list[int]) -> None:
    images = _streaming(files, batches_ahead=50)
    with images.prefetch([(np.arange(_N), np.full(_N, epoch)) for epoch in range(50)]):
        pass
    stopped = len(decoded)
    assert stopped < 50 * _N
    assert threading.active_count() >= 3
    time.sleep(0.05)
    assert len(decoded) == stopped
    expected = _streaming(files, workers=0).training_batch(np.arange(2), np.zeros(2, dtype=np.int64))
    assert torch.equal(images.training_batch(np.arange(2), np.zeros(2, dtype=np.int64)), expected)


def test_threads_end_with_the_object(files: list[Path]) -> None:
    images = _streaming(files)
    images.evaluation_batch(np.arange(8))
    assert any(thread.name.startswith("decode") for thread in threading.enumerate())
    del images
    gc.collect()
    assert _until(lambda: not any(thread.name.startswith("decode") for thread in threading.enumerate()))


@pytest.mark.parametrize("workers", [0, 2])
def test_pillow_warnings_are_silent_and_the_callers_filters_stay(tmp_path: Path, workers: int) -> None:
    """A TIFF's tag of a wrong length makes Pillow warn; the picture is sound."""
    exif = b"Exif\0\0MM\0*" + struct.pack(">I", 8) + struct.pack(">H", 9)
    path = _write(tmp_path / "a.jpg", encode(Image.new("RGB", (8, 8), (10, 20, 30)), "JPEG", exif=exif))
    before = list(warnings.filters)
    images, request = _streaming([path], workers=workers), (np.array([0]), np.array([0]))
    images.training_batch(*request)
    with images.prefetch([request]):
        images.training_batch(*request)
    assert list(warnings.filters) == before
