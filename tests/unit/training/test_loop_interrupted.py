"""A run that is interrupted, or measured on its way, ends as if it had not been."""

import copy
import math
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.durations import BatchStage
from pipeline.errors import Terminated
from pipeline.models.network import Network
from pipeline.training import hash_chain
from pipeline.training.checkpointing import Checkpointer, Checkpoints, stop_and_save_flags
from pipeline.training.evaluation import Evaluation
from pipeline.training.state import TrainState
from tests.fixtures.loop import train_bright, weights_of
from tests.fixtures.slow import quick_first
from tests.fixtures.training import ALONE, TINY


class _StopAfter(Checkpointer):
    """Asks the run to end once so many steps are done, as SIGTERM would."""

    def __init__(self, folder: Path, step: int) -> None:
        super().__init__(Checkpoints(folder), stop_and_save_flags(), world=ALONE, steps=1000)
        self._stop = step

    def maybe_save(self, state: TrainState) -> None:
        if state.step == self._stop:
            os.kill(os.getpid(), signal.SIGTERM)
        super().maybe_save(state)


_GROWING: dict[str, Any] = {
    "batch_stages": (BatchStage(batch_size=8, until_step=3), BatchStage(batch_size=12, until_step=6)),
    "batch_lr_scaling": "linear",
}
"""Stopped in the middle of either stage."""


@pytest.mark.parametrize(
    "changes",
    quick_first(
        2,
        [
            {"network": "small_cnn", "reduction": "exact", "noise_scale_steps": 2},
            {"network": "small_cnn", "ema_decay": 0.9, "clip_norm": 0.1},
            {},
            {"reduction": "exact", "noise_scale_steps": 2},
            {"network": "resnet9", **_GROWING, "noise_scale_steps": 2},
            {"network": "small_cnn", **_GROWING, "reduction": "exact"},
        ],
    ),
    ids=["exact", "dropout", "ddp resnet", "exact resnet", "growing", "growing exact"],
)
def test_a_run_that_was_asked_to_end_goes_on_to_the_same_bits(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_chain, "LINK_EXAMPLES", 30)  # links between the two interruptions, too
    settings = replace(TINY, steps=7, **changes)
    straight = train_bright(settings, track_confidence=True)
    begun = time.monotonic()
    for stop in (2, 5):
        checkpointer = _StopAfter(tmp_path / "run", stop)
        with checkpointer.stop_at_signals(), pytest.raises(Terminated, match=rf"\b{stop}\b"):
            train_bright(settings, checkpointer=checkpointer, track_confidence=True)
    checkpointer = _StopAfter(tmp_path / "run", -1)
    before = time.monotonic()
    resumed = train_bright(settings, checkpointer=checkpointer, track_confidence=True)
    assert straight.earlier_seconds == 0
    assert 0 < resumed.earlier_seconds < before - begun  # of both that were stopped
    assert torch.equal(weights_of(resumed), weights_of(straight))
    assert resumed.history == straight.history
    assert resumed.links == straight.links
    assert len(straight.links) > 2
    assert resumed.noise_scale == straight.noise_scale
    assert resumed.confidence is not None
    np.testing.assert_array_equal(resumed.confidence, straight.confidence)
    checkpointer.clear()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_goes_on_with_its_micro_batch_unless_asked(tmp_path: Path) -> None:
    """Who ran out of memory asks for less, and must get it."""
    settings = replace(TINY, network="small_cnn", steps=5)
    for chosen, asked, taken in ((10, "auto", 10), (20, 10, 10)):
        checkpointer = _StopAfter(tmp_path / str(asked), 2)
        with checkpointer.stop_at_signals(), pytest.raises(Terminated):
            train_bright(settings, checkpointer=checkpointer, micro_batch=chosen)
        resumed = train_bright(settings, checkpointer=_StopAfter(tmp_path / str(asked), -1), micro_batch=asked)
        assert resumed.micro_batch == taken


@pytest.mark.parametrize(
    "options",
    quick_first(
        1,
        [
            {"network": "small_cnn"},
            {},
            {"network": "resnet9", "ema_decay": 0.8},
            {"network": "small_cnn", "reduction": "exact"},
            {"network": "resnet9", "batch_stages": (BatchStage(batch_size=8, until_step=3),)},
        ],
    ),
    ids=["dropout", "resnet", "ema", "exact", "growing"],
)
def test_what_is_measured_on_the_way_is_of_a_run_that_ends_there(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_chain, "LINK_EXAMPLES", 20)
    whole, evaluated = replace(TINY, steps=6, schedule="constant", schedule_options={}, **options), []

    def note(model: Network) -> Evaluation:
        evaluated.append(copy.deepcopy(model.state_dict()))
        model.eval()
        return Evaluation(correct=np.arange(4) == 0, loss=1.5 if len(evaluated) == 1 else math.inf)

    measured = train_bright(replace(whole, accuracy_steps=2), eval_fn=note)
    actual = [(record.step, record.top1, record.test_loss) for record in measured.history if record.top1 is not None]
    assert actual == [(2, 0.25, 1.5), (4, 0.25, None)]
    for step, weights in zip((2, 4), evaluated, strict=True):
        # A run that ends in a stage is one of that stage's batches.
        ended = replace(whole, steps=step)
        if ended.batch_stages and step == 2:
            ended = replace(ended, batch_size=8, batch_stages=())
        alone = train_bright(ended).model.state_dict()
        assert all(torch.equal(weights[name], alone[name]) for name in alone)
    # The run continues with the same bits.
    plain = train_bright(whole)
    assert torch.equal(weights_of(measured), weights_of(plain))
    assert measured.links == plain.links
