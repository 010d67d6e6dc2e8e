"""Features are those of the network in evaluation mode, whatever the batch and chunk sizes and the ranks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up_training import ALONE, NAMES, TINY, bright_images, build_resnet
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from pipeline.distributed import Ranks
from pipeline.errors import InputError
from pipeline.features import extract
from pipeline.features.extract import Predictions, extract_features
from pipeline.run_log import RunLog
from pipeline.training.weights import TrainedNetwork

N = 23


@pytest.fixture(scope="module")
def network() -> TrainedNetwork:
    model = build_resnet().eval()
    cropped = replace(TINY.format, crop_size=14)
    return TrainedNetwork(model=model, network="resnet18", class_names=NAMES, format=cropped)


def _extract(
    network: TrainedNetwork, out: NDArray[np.float32], *, batch_size: int = 8, ranks: Ranks = ALONE
) -> Predictions:
    with RunLog.silent().progress("", N, "images") as progress:
        return extract_features(
            network, bright_images(N)[0], out, batch_size=batch_size, ranks=ranks, progress=progress
        )


def _expected(network: TrainedNetwork) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Features and class probabilities of the centre crops, in one pass."""
    images = torch.from_numpy(bright_images(N)[0]).permute(0, 3, 1, 2) / 255
    with torch.inference_mode():
        features = network.model.features((images[:, :, 1:15, 1:15] - 0.44) / 0.27)
        return features.numpy(), network.model.classify(features).softmax(1).numpy()


@pytest.mark.parametrize("batch_size", [1, 8, N, 100])
@pytest.mark.parametrize("chunk_bytes", [1, 10 * 16 * 16 * 3, 2**28])
def test_features_of_one_pass(
    network: TrainedNetwork, batch_size: int, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract, "_CHUNK_BYTES", chunk_bytes)
    out = np.full((N, 512), np.nan, dtype=np.float32)
    predictions = _extract(network, out, batch_size=batch_size)
    features, probabilities = _expected(network)
    np.testing.assert_allclose(out, features, rtol=1e-3, atol=1e-5)
    assert predictions.predicted.tolist() == probabilities.argmax(1).tolist()
    np.testing.assert_allclose(predictions.confidence, probabilities.max(1), rtol=1e-4)
    assert predictions.predicted.dtype == np.int64
    assert predictions.confidence.dtype == np.float32


def test_ranks_write_their_own_rows_of_a_shared_file(network: TrainedNetwork, tmp_path: Path) -> None:
    out = open_memmap(tmp_path / "f.npy", mode="w+", dtype=np.float32, shape=(N, 512))
    out[:] = -1
    partial = [_extract(network, out, ranks=Ranks(rank=rank, count=3, device=ALONE.device)) for rank in (2, 0, 1)]
    features, probabilities = _expected(network)
    np.testing.assert_allclose(out, features, rtol=1e-3, atol=1e-5)
    # Zero where another rank predicts, so that a sum over ranks gives all.
    assert sum(p.predicted for p in partial).tolist() == probabilities.argmax(1).tolist()  # type: ignore[union-attr]


def test_images_in_a_mapped_file_are_read_chunk_by_chunk(network: TrainedNetwork, tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", bright_images(N)[0])
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    out = np.zeros((N, 512), dtype=np.float32)
    with RunLog.silent().progress("", N, "images") as progress:
        extract_features(network, mapped, out, batch_size=8, ranks=ALONE, progress=progress)
    np.testing.assert_allclose(out, _expected(network)[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused(bad: float) -> None:
    model = build_resnet().eval()
    torch.nn.init.constant_(model.backbone.layer4[1].bn2.bias, bad)
    network = TrainedNetwork(model=model, network="resnet18", class_names=NAMES, format=TINY.format)
    with pytest.raises(InputError, match="NaN or infinity"):
        _extract(network, np.zeros((N, 512), dtype=np.float32))
