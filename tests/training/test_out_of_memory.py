"""Memory that runs out while a run trains or is evaluated: one line that names what to lower, and nothing lost."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up_loop import train_bright, weights_of
from made_up_training import ALONE, NAMES, TINY, bright_images
from torch import Tensor, nn

from pipeline.errors import OutOfMemory
from pipeline.models import build
from pipeline.models.small_cnn import SmallCnn
from pipeline.training.checkpoints import Checkpoints
from pipeline.training.evaluate import evaluate
from pipeline.training.images import load_images
from pipeline.training.interruptions import Pauses, end_and_due
from pipeline.training.weights import load_trained, save_trained

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


@pytest.mark.parametrize(
    ("micro_batch", "mend"),
    [
        (20, "give micro_batch: 10, at least 10; or more simulated_workers or a smaller bn_group"),
        (10, "give more simulated_workers or a smaller bn_group"),
    ],
)
def test_training_names_batch_group_and_setting(micro_batch: int, mend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SmallCnn, "features", _failing_at(2, SmallCnn.features))
    said = (
        f"a pass of {micro_batch} images, of a batch of 20 in BatchNorm groups of 10, does not fit the memory; {mend}"
    )
    with pytest.raises(OutOfMemory, match=f"^micro_batch: {re.escape(said)}"):
        train_bright(_SETTINGS, micro_batch=micro_batch)


def test_what_stands_before_the_first_step_names_batch_and_group_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights and optimizer, and the pass that says how much an image takes."""
    said = (
        r"^network small_cnn: does not fit the memory, before the first step of a batch of 20 in BatchNorm groups of "
        r"10; choose a smaller network, give more simulated_workers or a smaller bn_group"
    )
    with pytest.raises(OutOfMemory, match=said):
        train_bright(_SETTINGS, micro_batch=20, initialise=lambda _: torch.empty(2**50, dtype=torch.uint8))
    # With a key of its own, since what an image takes is known from earlier runs.
    settings = replace(_SETTINGS, n_classes=len(NAMES) + 1)
    monkeypatch.setattr(SmallCnn, "features", _failing_at(1, SmallCnn.features))
    with pytest.raises(OutOfMemory, match=said):
        train_bright(settings, micro_batch="auto")


def test_images_that_do_not_fit_name_the_settings_of_prepare() -> None:
    images = np.broadcast_to(np.uint8(0), (2**40, 16, 16, 3))
    said = (
        rf"^prepare\.storage: {2**40:,} images of 16x16 pixels do not fit the memory; give files, a smaller "
        r"prepare\.image_size or a prepare\.train_share$"
    )
    with pytest.raises(OutOfMemory, match=said):
        load_images(images, _SETTINGS, training=False, device=ALONE.device)


def test_prediction_names_its_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("small_cnn", len(NAMES), stem="imagenet", seed=0)
    save_trained(tmp_path / "best.pt", model, _SETTINGS, NAMES)
    network = load_trained(tmp_path / "best.pt")
    monkeypatch.setattr(SmallCnn, "features", _failing_at(1, SmallCnn.features))
    pixels, _ = bright_images(4)
    said = r"^images: 4 of them, 3 in a pass, do not fit the memory; give fewer, or a smaller batch_size$"
    with pytest.raises(OutOfMemory, match=said):
        network.predict(pixels, batch_size=3)


def test_a_run_goes_on_from_what_it_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pauses() -> Pauses:
        return Pauses(Checkpoints(tmp_path), end_and_due(), ranks=ALONE, steps=1)

    straight = train_bright(_SETTINGS, micro_batch=10)
    with monkeypatch.context() as patched:
        patched.setattr(SmallCnn, "features", _failing_at(6, SmallCnn.features))
        with pytest.raises(OutOfMemory):
            train_bright(_SETTINGS, micro_batch=10, pauses=pauses())
    saved = Checkpoints(tmp_path).newest(print)
    assert saved is not None
    assert saved[0] == 2
    resumed = train_bright(_SETTINGS, micro_batch=10, pauses=pauses())
    assert torch.equal(weights_of(resumed), weights_of(straight))


def test_evaluation_names_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, labels = bright_images(4)
    images = load_images(pixels, _SETTINGS, training=False, device=ALONE.device)
    model = build("small_cnn", len(NAMES), stem="imagenet", seed=0)
    monkeypatch.setattr(SmallCnn, "features", _failing_at(1, SmallCnn.features))
    with pytest.raises(OutOfMemory, match=r"^eval_batch_size: a pass of 3 images does not fit the memory; give less$"):
        evaluate(model, images, torch.from_numpy(labels), batch_size=3, ranks=ALONE)
