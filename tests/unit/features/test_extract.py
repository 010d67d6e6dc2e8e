"""Features are those of the network in evaluation mode, for any batch size, chunk size and number of ranks."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from pipeline.distributed import World
from pipeline.errors import InputError
from pipeline.features import extract
from pipeline.features.extract import FoldPasses, extract_by_fold, extract_features
from pipeline.features.trained import PairedSums, fit_similarity
from pipeline.models import set_head
from pipeline.run_log import RunLog
from pipeline.training.weights import FoldNetworks, TrainedNetwork
from tests.fixtures.slow import quick_first
from tests.fixtures.training import ALONE, NAMES, TINY, as_resnet, assert_rows_near, bright_images, build_resnet

N = 23


@pytest.fixture(scope="module")
def network() -> TrainedNetwork:
    model = build_resnet().eval()
    cropped = replace(TINY.format, crop_size=14)
    return TrainedNetwork(model=model, network="resnet18", class_names=NAMES, format=cropped)


def _extract(
    network: TrainedNetwork, out: NDArray[np.float32], *, batch_size: int = 8, world: World = ALONE
) -> NDArray[np.float32]:
    """The probabilities."""
    sure = np.zeros((N, len(NAMES)), dtype=np.float32)
    with RunLog.silent().progress("", N, "images") as progress:
        extract_features(
            [network], bright_images(N)[0], out, sure, batch_size=batch_size, world=world, progress=progress
        )
    return sure


def _expected(network: TrainedNetwork) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Features and class probabilities of the center crops, in one pass."""
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
    given = _extract(network, out, batch_size=batch_size)
    features, probabilities = _expected(network)
    assert_rows_near(out, features)
    assert_rows_near(given, probabilities)
    np.testing.assert_allclose(given.sum(1), 1, atol=1e-6)


def test_ranks_write_their_own_rows_of_a_shared_file(network: TrainedNetwork, tmp_path: Path) -> None:
    out = open_memmap(tmp_path / "f.npy", mode="w+", dtype=np.float32, shape=(N, 512))
    out[:] = -1
    partial = [_extract(network, out, world=World(rank=rank, size=3, device=ALONE.device)) for rank in (2, 0, 1)]
    features, probabilities = _expected(network)
    assert_rows_near(out, features)
    # Zero where another rank predicts, so that a sum over ranks gives all.
    assert_rows_near(np.sum(partial, axis=0), probabilities)


def test_images_in_a_mapped_file_are_read_chunk_by_chunk(network: TrainedNetwork, tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", bright_images(N)[0])
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    out = np.zeros((N, 512), dtype=np.float32)
    with RunLog.silent().progress("", N, "images") as progress:
        sure = np.zeros((N, len(NAMES)), dtype=np.float32)
        extract_features([network], mapped, out, sure, batch_size=8, world=ALONE, progress=progress)
    assert_rows_near(out, _expected(network)[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite_are_refused(bad: float) -> None:
    model = build_resnet().eval()
    torch.nn.init.constant_(model.backbone.layer4[1].bn2.bias, bad)
    network = TrainedNetwork(model=model, network="resnet18", class_names=NAMES, format=TINY.format)
    with pytest.raises(InputError) as refused:
        _extract(network, np.zeros((N, 512), dtype=np.float32))
    assert refused.value.key == "features"


# Folds


def _network(seed: int) -> TrainedNetwork:
    model = build_resnet(seed=seed).eval()
    return TrainedNetwork(model=model, network="resnet18", class_names=NAMES, format=TINY.format)


def _by_fold(
    networks: list[TrainedNetwork], folds: NDArray[np.int32], batch_size: int = 8, *, average: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.float32], list[float]]:
    """Return the out-of-fold features and probabilities, and the shares that alignment explains."""
    out, sure = np.zeros((len(networks), N, 512), np.float32), np.zeros((N, len(NAMES)), np.float32)
    with RunLog.silent().progress("", N, "images") as progress:
        aligned = extract_by_fold(
            FoldNetworks(networks=tuple(networks), folds=folds),
            bright_images(N)[0],
            out,
            sure,
            passes=FoldPasses(batch_size=batch_size, average_folds=average),
            world=ALONE,
            progress=progress,
        )
    return out[folds, np.arange(N)], sure, aligned


def _alone(network: TrainedNetwork, *, mirrored: bool = False) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    out, sure = np.zeros((N, 512), np.float32), np.zeros((N, len(NAMES)), np.float32)
    images = bright_images(N)[0]
    images = np.ascontiguousarray(images[:, :, ::-1]) if mirrored else images
    with RunLog.silent().progress("", N, "images") as progress:
        extract_features([network], images, out, sure, batch_size=8, world=ALONE, progress=progress)
    return out, sure


@pytest.mark.parametrize("batch_size", quick_first(1, [8, 3, 64]))
def test_the_network_of_its_fold_sees_an_image_in_the_firsts_space(batch_size: int) -> None:
    networks, folds = [_network(seed) for seed in range(3)], (np.arange(N) % 3).astype(np.int32)
    out, sure, aligned = _by_fold(networks, folds, batch_size)
    first, _ = _alone(networks[0])
    for fold, network in enumerate(networks):
        rows = folds == fold
        features, probabilities = _alone(network)
        assert_rows_near(sure[rows], probabilities[rows])
        sums = PairedSums(512)
        sums.add(features, first)
        expected = features if fold == 0 else fit_similarity(sums).apply(features)
        np.testing.assert_allclose(out[rows], expected[rows], rtol=1e-2, atol=1e-2 * float(first.std()))
        # Apart, they are not alike at all.
        assert fold == 0 or np.abs(features - first).mean() > 10 * np.abs(out[rows] - expected[rows]).mean()
    assert len(aligned) == 2
    assert all(0 < share <= 1 for share in aligned)


def test_the_same_features_in_another_basis_are_those_of_the_first() -> None:
    """Its last convolution's channels are permuted, and its features twice as large."""
    one, other = _network(0), _network(0)
    as_resnet(other.model).backbone.bn1.num_batches_tracked += 1  # not the same weights, with the same features
    order = torch.randperm(512, generator=torch.Generator().manual_seed(0))
    plain = other.model.features
    other.model.features = lambda images: 2 * plain(images)[:, order]  # type: ignore[method-assign]
    folds = (np.arange(N) % 2).astype(np.int32)
    out, _, aligned = _by_fold([one, other], folds)
    assert_rows_near(out, _alone(one)[0])
    assert aligned == pytest.approx([1])


def test_heads_on_one_backbone_share_features_and_forward_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    networks, folds = [_network(0), _network(0), _network(0)], (np.arange(N) % 3).astype(np.int32)
    for scale, network in enumerate(networks):
        set_head(network.model, torch.full((len(NAMES), 512), 0.01 * scale), torch.arange(float(len(NAMES))))
    expected, probabilities = _alone(networks[0])[0], [_alone(network)[1] for network in networks]
    for network in networks[1:]:
        monkeypatch.setattr(network.model, "features", None)
    out, sure, aligned = _by_fold(networks, folds)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(sure, np.stack(probabilities)[folds, np.arange(N)])
    assert aligned == [1, 1]


def test_one_network_gives_its_features_to_the_bit() -> None:
    out, sure, aligned = _by_fold([_network(0)], np.zeros(N, np.int32))
    features, probabilities = _alone(_network(0))
    np.testing.assert_array_equal(out, features)
    np.testing.assert_array_equal(sure, probabilities)
    assert aligned == []


def test_several_networks_average_and_the_first_gives_the_features() -> None:
    networks = [_network(seed) for seed in range(3)]
    out, sure = np.zeros((N, 512), np.float32), np.zeros((N, len(NAMES)), np.float32)
    with RunLog.silent().progress("", N, "images") as progress:
        extract_features(networks, bright_images(N)[0], out, sure, batch_size=8, world=ALONE, progress=progress)
    np.testing.assert_array_equal(out, _alone(networks[0])[0])
    assert_rows_near(sure, np.mean([_alone(network)[1] for network in networks], axis=0))


@pytest.mark.parametrize("n_networks", quick_first(1, [2, 1]))
def test_with_mirror_images_the_means_of_both_views_are_given(n_networks: int) -> None:
    networks = [_network(seed) for seed in range(n_networks)]
    folds = (np.arange(N) % n_networks).astype(np.int32)
    # By view and network.
    features, sure_of = (
        np.stack([[_alone(network, mirrored=mirrored)[part] for network in networks] for mirrored in (False, True)])
        for part in (0, 1)
    )
    assert abs(features[0] - features[1]).max() > 1e-3, "the views tell nothing apart"
    out, sure = np.empty((N, 512), np.float32), np.empty((N, len(NAMES)), np.float32)
    with RunLog.silent().progress("", 2 * N, "images") as progress:
        options: Any = {"batch_size": 8, "flip_tta": True, "world": ALONE, "progress": progress}
        extract_features(networks, bright_images(N)[0], out, sure, **options)
        assert_rows_near(out, features[:, 0].mean(0))
        assert_rows_near(sure, sure_of.mean((0, 1)))
        by_network = np.empty((n_networks, N, 512), np.float32)
        extractor = FoldNetworks(networks=tuple(networks), folds=folds)
        passes = FoldPasses(batch_size=8, flip_tta=True)
        extract_by_fold(extractor, bright_images(N)[0], by_network, sure, passes=passes, world=ALONE, progress=progress)
        assert_rows_near(sure, sure_of.mean(0)[folds, np.arange(N)])


@pytest.mark.parametrize("n_networks", quick_first(1, [2, 1, 3]))
def test_averaged_probabilities_weigh_the_folds_network_by_half(n_networks: int) -> None:
    networks, folds = [_network(seed) for seed in range(n_networks)], (np.arange(N) % n_networks).astype(np.int32)
    features, averaged, _ = _by_fold(networks, folds, average=True)
    by_network = np.stack([_alone(network)[1] for network in networks]).astype(np.float64)
    weights = np.full((n_networks, n_networks), 0.5 / max(1, n_networks - 1))
    np.fill_diagonal(weights, 0.5 if n_networks > 1 else 1)
    expected = np.einsum("nk,knc->nc", weights[folds], by_network)
    np.testing.assert_allclose(averaged, expected, atol=1e-6)
    np.testing.assert_allclose(averaged.sum(axis=1), 1, atol=1e-5)
    out_of_fold = _by_fold(networks, folds)
    np.testing.assert_array_equal(features, out_of_fold[0])
    assert n_networks == 1 or abs(averaged - out_of_fold[1]).max() > 1e-3


def test_features_all_alike_cannot_be_aligned() -> None:
    one, other = _network(0), _network(1)
    other.model.features = lambda images: torch.ones(len(images), 512)  # type: ignore[method-assign]
    with pytest.raises(InputError) as refused:
        _by_fold([one, other], (np.arange(N) % 2).astype(np.int32))
    assert re.findall(r"fold (\d+)", str(refused.value)) == ["1"]
