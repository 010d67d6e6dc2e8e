"""The ratio of two noise scales at the same weights, on gradients whose ratio is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from pipeline.models import build_network
from pipeline.run_analysis.noise_scale_ratio import PartNorms, measure_parts, noise_scale_of, scale_ratio
from pipeline.training.noise_scale import estimate_noise_scale
from tests.fixtures.training import NAMES, random_train_loss

_K = 10


def _norms(gradients: NDArray[np.float64]) -> PartNorms:
    """Of the gradients of single images (parts, images, weights)."""
    means = gradients.mean(axis=1)
    return PartNorms(part_size=gradients.shape[1], sq_norms=(means**2).sum(axis=1), dots=means @ means.sum(axis=0))


def _symmetric_noise(share: float, rng: np.random.Generator, n: int = 4000) -> PartNorms:
    """Gradients of softmax regression at zero weights, with a share of the labels changed to any other class."""
    classes = rng.integers(0, _K, n)
    wrong = rng.random(n) < share
    labels = np.where(wrong, (classes + rng.integers(1, _K, n)) % _K, classes)
    inputs = np.eye(_K)[classes] + rng.normal(size=(n, _K))
    errors = 1 / _K - np.eye(_K)[labels]
    return _norms((errors[:, :, None] * inputs[:, None, :]).reshape(20, n // 20, -1))


@pytest.mark.parametrize("share", [0.2, 0.4])
def test_symmetric_noise_divides_the_noise_scale_by_s_squared(share: float) -> None:
    rng = np.random.default_rng(0)
    law = (1 - share * _K / (_K - 1)) ** -2
    found = scale_ratio(_symmetric_noise(share, rng, 40_000), _symmetric_noise(0.0, rng, 40_000))
    assert found.ratio == pytest.approx(law, rel=0.15)
    assert found.low is not None
    assert found.high is not None
    assert found.low < law < found.high


@pytest.mark.slow
def test_the_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    law = (1 - 0.2 * _K / (_K - 1)) ** -2
    ratios = [scale_ratio(_symmetric_noise(0.2, rng), _symmetric_noise(0.0, rng)) for _ in range(200)]
    covered = [row.low is not None and row.high is not None and row.low < law < row.high for row in ratios]
    assert 0.9 <= np.mean(covered) <= 0.99


def test_leaving_out_a_part_is_the_estimate_of_the_others() -> None:
    gradients = np.random.default_rng(2).normal(size=(5, 3, 7))
    whole = _norms(gradients)
    for part in range(5):
        rest = _norms(np.delete(gradients, part, axis=0)).sample()
        assert vars(whole.without(part)) == pytest.approx(vars(rest))


def test_a_gradient_within_the_noise_gives_no_ratio_and_says_so() -> None:
    gradients = np.random.default_rng(3).normal(size=(20, 5, 50))
    clear, none = _norms(gradients + 1), _norms(gradients - gradients.mean(axis=(0, 1)))
    for found in (scale_ratio(clear, none), scale_ratio(none, clear)):
        assert (found.ratio, found.low, found.high) == (None, None, None)
        assert found.reason is not None
    # A gradient in one part alone: |G|^2 is above 0, and not without that part.
    alone = replace(none, sq_norms=np.array([9.0, 1.0, 1.0]), dots=np.array([10.0, 1.2, 0.9]))
    found = scale_ratio(alone, clear)
    assert found.ratio is not None
    assert (found.low, found.high) == (None, None)


def _small_cnn() -> nn.Module:
    return build_network("small_cnn", len(NAMES), stem="imagenet", seed=0).double().train()


def test_parts_of_a_network_have_the_norms_of_plain_gradients() -> None:
    n, model, train_loss = 23, _small_cnn(), random_train_loss(30)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    rows = np.random.default_rng(4).permutation(30)[:n]
    found = measure_parts(model, train_loss, rows, parts=4, batch_size=2)
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    model.eval()
    gradients = []
    for part in rows[:20].reshape(4, 5):
        images = train_loss.images.training_batch(part, np.zeros_like(part))
        loss = nn.functional.cross_entropy(model(images), train_loss.labels[torch.from_numpy(part)])
        gradients.append(torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, list(model.parameters()))]))
    means = torch.stack(gradients).numpy()
    expected = _norms(means[:, None])
    assert found.part_size == 5
    np.testing.assert_allclose(found.sq_norms, expected.sq_norms, rtol=1e-9)
    np.testing.assert_allclose(found.dots, expected.dots, rtol=1e-9)
    scale = noise_scale_of(estimate_noise_scale([found.sample()]))
    assert scale is None or scale > 0
