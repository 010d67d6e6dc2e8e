"""Finished networks come back in every bit, and a damaged one is named."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import InputError
from pipeline.models import build_network
from pipeline.runs.folds import CachedNetwork, NetworkCache
from pipeline.training.checkpointing import Checkpoints
from pipeline.training.dynamics import TrainingDynamics
from tests.fixtures.training import ALONE, TINY

SETTINGS = replace(TINY, network="small_cnn")
KEY = "0f" * 12


def _network(seed: int = 7) -> CachedNetwork:
    model = build_network("small_cnn", SETTINGS.n_classes, stem="imagenet", seed=seed)
    confidence = np.array([0.25, np.nan], dtype=np.float32)
    dynamics = TrainingDynamics(margin=-confidence, forgetting=np.array([np.inf, np.nan], dtype=np.float32))
    return CachedNetwork(
        state=model.state_dict(), train_loss=1 / 3, confidence=confidence, seconds=2.5, dynamics=dynamics
    )


def test_a_network_comes_back(tmp_path: Path) -> None:
    kept, network = NetworkCache(tmp_path), _network()
    assert kept.get(KEY) is None
    kept.put(KEY, network, steps=9)
    actual = kept.get(KEY)
    assert actual is not None
    assert (actual.train_loss, actual.seconds) == (1 / 3, 2.5)
    np.testing.assert_array_equal(actual.confidence, network.confidence)
    assert actual.dynamics is not None
    np.testing.assert_array_equal(actual.dynamics.margin, [-0.25, np.nan])
    np.testing.assert_array_equal(actual.dynamics.forgetting, [np.inf, np.nan])
    state = actual.model(SETTINGS, ALONE.device).state_dict()
    assert state.keys() == network.state.keys()
    assert all(torch.equal(state[name], network.state[name]) for name in state)


def test_an_entry_of_an_earlier_version_has_no_dynamics(tmp_path: Path) -> None:
    network = _network()
    content = {**vars(network), "confidence": torch.from_numpy(network.confidence)}
    del content["dynamics"]
    kept = NetworkCache(tmp_path)
    Checkpoints(kept.folder(KEY), keep=1).save(9, content)
    actual = kept.get(KEY)
    assert actual is not None
    assert actual.dynamics is None
    np.testing.assert_array_equal(actual.confidence, network.confidence)
    kept.put(KEY, actual, steps=9)  # as a head, which has none either
    assert (again := kept.get(KEY)) is not None
    assert again.dynamics is None


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


_DAMAGE: dict[str, Callable[[Path], object]] = {
    "another bit": _flip,
    "torn": lambda path: os.truncate(path, 1000),
    "of another kind": lambda path: Checkpoints(path.parent, keep=1).save(10, {"model": {}}),
}


@pytest.mark.parametrize("damage", _DAMAGE)
def test_a_damaged_network_is_named(tmp_path: Path, damage: str) -> None:
    kept = NetworkCache(tmp_path)
    kept.put(KEY, _network(), steps=9)
    (path,) = (tmp_path / KEY).iterdir()
    _DAMAGE[damage](path)
    with pytest.raises(InputError) as raised:
        kept.get(KEY)
    assert raised.value.key == str(tmp_path / KEY)


def test_the_network_of_another_key_is_refused(tmp_path: Path) -> None:
    """The file is whole, and its name is right."""
    kept = NetworkCache(tmp_path)
    kept.put("other", _network(), steps=9)
    (tmp_path / "other").rename(tmp_path / KEY)
    with pytest.raises(InputError) as raised:
        kept.get(KEY)
    assert raised.value.key == str(tmp_path / KEY)
    assert f"is one of other, not of {KEY}; remove the folder" in str(raised.value)


def test_networks_unused_for_long_are_removed(tmp_path: Path) -> None:
    kept = NetworkCache(tmp_path)
    for key in ("old", "used"):
        kept.put(key, _network(), steps=9)
        os.utime(tmp_path / key, (0, 0))
    assert kept.get("used") is not None
    kept.clear(max_age_s=60)
    assert [path.name for path in tmp_path.iterdir()] == ["used"]
