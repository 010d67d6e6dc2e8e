"""Masks of dropout: the wanted share, and a function of (seed, epoch, sample, layer) alone."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pipeline.models.layers import KeyedDropout, KeyedStochasticDepth, sample_keys

_N = 4000


def _keys(ids: Sequence[int], *, seed: int = 0, epoch: int = 0) -> Tensor:
    return sample_keys(seed, np.array(ids, dtype=np.int64), np.full(len(ids), epoch, dtype=np.int64))


def _mask(keys: Tensor, *, p: float = 0.5, layer: int = 1, n: int = _N) -> Tensor:
    """(B, n) bool of what is kept."""
    dropout = KeyedDropout(p, layer=layer).train()
    dropout.keys = keys
    kept: Tensor = dropout(torch.ones(len(keys), n)) != 0
    return kept


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("axis", ["elements", "samples"])
def test_the_wanted_share_is_kept(p: float, axis: str) -> None:
    """Within five standard deviations, over the elements of one sample and over samples."""
    mask = _mask(_keys([7]), p=p, n=100_000) if axis == "elements" else _mask(_keys(range(100_000)), p=p, n=1)
    assert float(mask.float().mean()) == pytest.approx(1 - p, abs=5 * (p * (1 - p) / 100_000) ** 0.5)


def test_what_is_kept_is_scaled_to_the_same_mean() -> None:
    dropout = KeyedDropout(0.25, layer=1).train()
    dropout.keys = _keys([0, 1])
    values = dropout(torch.full((2, 5, 4, 4), 3.0)).unique().tolist()
    assert values == [0.0, 4.0]


@given(ids=st.lists(st.integers(0, 10**6), min_size=1, max_size=12), seed=st.integers(0, 2**63 - 1), data=st.data())
def test_a_mask_depends_on_its_sample_and_not_on_the_batch(ids: list[int], seed: int, data: st.DataObject) -> None:
    together = _mask(_keys(ids, seed=seed, epoch=3), n=50)
    row = data.draw(st.integers(0, len(ids) - 1))
    assert torch.equal(_mask(_keys([ids[row]], seed=seed, epoch=3), n=50)[0], together[row])
    order = data.draw(st.permutations(range(len(ids))))
    assert torch.equal(_mask(_keys([ids[place] for place in order], seed=seed, epoch=3), n=50), together[order])


@pytest.mark.parametrize(
    "other", [_keys([1]), _keys([0], seed=1), _keys([0], epoch=1), _keys([2**40])], ids=["id", "seed", "epoch", "far"]
)
def test_another_sample_seed_or_epoch_draws_independently(other: Tensor) -> None:
    agreement = float((_mask(_keys([0])) == _mask(other)).float().mean())
    assert agreement == pytest.approx(0.5, abs=5 * 0.5 / _N**0.5)


def test_another_layer_draws_independently() -> None:
    agreement = float((_mask(_keys([0]), layer=1) == _mask(_keys([0]), layer=2)).float().mean())
    assert agreement == pytest.approx(0.5, abs=5 * 0.5 / _N**0.5)


def test_neighboring_elements_are_independent() -> None:
    mask = _mask(_keys(range(20)))
    agreement = float((mask[:, 1:] == mask[:, :-1]).float().mean())
    assert agreement == pytest.approx(0.5, abs=5 * 0.5 / (20 * _N) ** 0.5)


def test_keys_of_many_samples_and_epochs_are_distinct() -> None:
    keys = [_keys(range(2000), seed=seed, epoch=epoch) for seed in range(3) for epoch in range(10)]
    assert len(torch.cat(keys).unique()) == 60_000


def test_keys_and_draws_are_those_of_the_published_generator() -> None:
    """SplitMix64's finaliser in Python's whole numbers (Steele, Lea & Flood 2014, with Stafford's mix 13)."""
    wrap = (1 << 64) - 1

    def mixed(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & wrap
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & wrap
        return z ^ (z >> 31)

    golden, seed, epoch, sample, layer = 0x9E3779B97F4A7C15, 5, 3, 11, 2
    key = mixed(mixed(mixed(seed * golden & wrap) + epoch * golden & wrap) + sample * golden & wrap)
    assert int(_keys([sample], seed=seed, epoch=epoch)) & wrap == key
    inner = mixed(key + layer & wrap)
    uniform = [(mixed(inner + index * golden & wrap) >> 40) / 2**24 for index in range(1, 33)]
    assert _mask(_keys([sample], seed=seed, epoch=epoch), layer=layer, n=32)[0].tolist() == [u >= 0.5 for u in uniform]


def test_the_global_generator_does_not_matter_and_is_left_alone() -> None:
    first = _mask(_keys([0]))
    torch.rand(3)
    before = torch.get_rng_state()
    assert torch.equal(_mask(_keys([0])), first)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.5, False)])
def test_nothing_is_dropped_in_evaluation_or_with_a_rate_of_0(p: float, training: bool) -> None:
    dropout = KeyedDropout(p, layer=1).train(training)
    inputs = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(dropout(inputs), inputs)


def test_training_without_keys_is_a_bug() -> None:
    dropout = KeyedDropout(0.5, layer=1).train()
    with pytest.raises(AssertionError):
        dropout(torch.ones(2, 3))
    dropout.keys = _keys([0, 1, 2])
    with pytest.raises(AssertionError):
        dropout(torch.ones(2, 3))


@pytest.mark.parametrize("kind", [KeyedDropout, KeyedStochasticDepth])
def test_a_layer_applied_twice_in_a_pass_draws_twice(kind: type[KeyedDropout]) -> None:
    """As a block of a Swin transformer, whose two residuals torchvision drops independently."""
    layer, inputs = kind(0.5, layer=1).train(), torch.ones(_N, 1)
    passes = []
    for _ in range(2):
        layer.keys = _keys(range(_N))
        passes.append([layer(inputs) != 0 for _ in range(3)])
    for first, other in itertools.combinations(passes[0], 2):
        assert float((first == other).float().mean()) == pytest.approx(0.5, abs=5 * 0.5 / _N**0.5)
    assert all(torch.equal(*masks) for masks in zip(*passes, strict=True))
