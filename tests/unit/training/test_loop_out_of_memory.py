"""Memory that runs out while a run trains or is evaluated: one line that names what to lower, and nothing lost."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipeline.errors import OutOfMemory
from pipeline.models import build_network
from pipeline.models.small_cnn import SmallCnn
from pipeline.training.checkpointing import Checkpointer, Checkpoints, stop_and_save_flags
from pipeline.training.evaluation import evaluate, load_images
from pipeline.training.weights import load_trained, save_trained
from tests.fixtures.loop import train_bright, weights_of
from tests.fixtures.training import ALONE, NAMES, TINY, bright_images

_SETTINGS = replace(TINY, network="small_cnn", batch_size=20, simulated_workers=2, steps=4)


def _failing_at(call: int, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`forward`, which at this call, from 1, asks for more memory than there is."""
    calls = 0

    def failing(self: nn.Module, images: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == call:
            torch.empty(2**50, dtype=torch.uint8)
        return forward(self, images)

    return failing


@pytest.mark.parametrize(("micro_batch", "less"), [(20, "micro_batch: 10"), (160, "micro_batch: 10"), (10, "bn_group")])
def test_training_names_batch_group_and_setting(micro_batch: int, less: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the images of a pass fit where a BatchNorm group, 10 images, is not cut; no pass has 160."""
    monkeypatch.setattr(SmallCnn, "features", _failing_at(2, SmallCnn.features))
    with pytest.raises(OutOfMemory) as raised:
        train_bright(_SETTINGS, micro_batch=micro_batch)
    assert raised.value.key == "micro_batch"
    assert re.findall(r"\d+", str(raised.value))[:3] == [str(min(micro_batch, 20)), "20", "10"]
    assert less in str(raised.value)
    _, _, fix = str(raised.value).partition(": ")
    assert re.findall(r"micro_batch: (\d+)", fix) == (["10"] if micro_batch >= 20 else [])


def test_exact_sums_name_the_workers_and_no_smaller_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """All images of a simulated worker pass at once, in any groups."""
    monkeypatch.setattr(SmallCnn, "features", _failing_at(2, SmallCnn.features))
    with pytest.raises(OutOfMemory) as raised:
        train_bright(replace(_SETTINGS, reduction="exact", bn_group=5))
    assert raised.value.key == "simulated_workers"
    assert re.findall(r"\d+", str(raised.value)) == ["2", "10", "20"]
    assert "bn_group" not in str(raised.value)


def test_memory_before_the_first_step_names_batch_and_group_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights and optimizer, and the pass that says how much an image takes."""
    with pytest.raises(OutOfMemory) as of_weights:
        train_bright(_SETTINGS, micro_batch=20, initialize=lambda _: torch.empty(2**50, dtype=torch.uint8))
    # With another key, since the memory of an image is known from earlier runs.
    settings = replace(_SETTINGS, n_classes=len(NAMES) + 1)
    monkeypatch.setattr(SmallCnn, "features", _failing_at(1, SmallCnn.features))
    with pytest.raises(OutOfMemory) as of_a_pass:
        train_bright(settings, micro_batch="auto")
    for error in (of_weights.value, of_a_pass.value):
        assert error.key == "network small_cnn"
        assert re.findall(r"\d+", str(error)) == ["20", "10"]


def test_images_that_do_not_fit_name_the_settings_of_prepare() -> None:
    images = np.broadcast_to(np.uint8(0), (2**40, 16, 16, 3))
    with pytest.raises(OutOfMemory) as raised:
        load_images(images, _SETTINGS, training=False, device=ALONE.device)
    assert raised.value.key == "prepare.storage"
    assert f" {2**40:,} " in str(raised.value)


def test_prediction_names_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_network("small_cnn", len(NAMES), stem="imagenet", seed=0)
    save_trained(tmp_path / "best.pt", model, _SETTINGS, NAMES)
    network = load_trained(tmp_path / "best.pt")
    monkeypatch.setattr(SmallCnn, "features", _failing_at(1, SmallCnn.features))
    pixels, _ = bright_images(4)
    with pytest.raises(OutOfMemory) as raised:
        network.predict(pixels, batch_size=3)
    assert raised.value.key == "batch_size"
    assert re.findall(r"\d+", str(raised.value)) == ["3"]


def test_a_run_goes_on_from_what_it_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def checkpointer() -> Checkpointer:
        return Checkpointer(Checkpoints(tmp_path), stop_and_save_flags(), world=ALONE, steps=1)

    straight = train_bright(_SETTINGS, micro_batch=10)
    with monkeypatch.context() as patched:
        patched.setattr(SmallCnn, "features", _failing_at(6, SmallCnn.features))
        with pytest.raises(OutOfMemory):
            train_bright(_SETTINGS, micro_batch=10, checkpointer=checkpointer())
    saved = Checkpoints(tmp_path).load_latest(print)
    assert saved is not None
    assert saved[0] == 2
    resumed = train_bright(_SETTINGS, micro_batch=10, checkpointer=checkpointer())
    assert torch.equal(weights_of(resumed), weights_of(straight))


def test_evaluation_names_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, labels = bright_images(4)
    images = load_images(pixels, _SETTINGS, training=False, device=ALONE.device)
    model = build_network("small_cnn", len(NAMES), stem="imagenet", seed=0)
    monkeypatch.setattr(SmallCnn, "features", _failing_at(1, SmallCnn.features))
    with pytest.raises(OutOfMemory) as raised:
        evaluate(model, images, torch.from_numpy(labels), batch_size=3, world=ALONE)
    assert raised.value.key == "eval_batch_size"


def test_a_checkpoint_without_memory_names_no_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("checkpoint")

    checkpointer = Checkpointer(Checkpoints(tmp_path), stop_and_save_flags(), world=ALONE, steps=1)
    monkeypatch.setattr("torch.save", fail)
    with pytest.raises(OutOfMemory) as raised:
        train_bright(_SETTINGS, micro_batch=10, checkpointer=checkpointer)
    assert raised.value.key == "checkpoint"
