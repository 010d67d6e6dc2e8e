"""The losses of the steps between two records."""

import math
from dataclasses import replace

import torch

from pipeline.training.state import TrainState, start_state
from tests.fixtures.training import ALONE, TINY


def _take_steps(state: TrainState, *losses: float) -> None:
    for loss in losses:
        state.add_loss(torch.tensor(loss), 4)
        state.step += 1


def test_the_first_step_that_is_not_finite_is_known() -> None:
    state = start_state(replace(TINY, network="small_cnn"), ALONE)
    _take_steps(state, 1.0, 2.0)
    assert (float(state.loss_sum), state.loss_count) == (3.0, 8)
    assert state.first_step_not_finite() is None
    state.begin_record()
    assert (float(state.loss_sum), state.loss_count) == (0.0, 0)
    _take_steps(state, 1.0, math.inf, 1.0, math.nan)
    assert state.first_step_not_finite() == 4
    state.begin_record()
    _take_steps(state, 1.0)
    assert state.first_step_not_finite() is None


def test_a_checkpoint_keeps_the_first_step_that_is_not_finite() -> None:
    settings = replace(TINY, network="small_cnn")
    state = start_state(settings, ALONE)
    _take_steps(state, 1.0, math.nan, 1.0)
    resumed = start_state(settings, ALONE)
    resumed.load_state_dict(state.state_dict(), ALONE)
    assert resumed.first_step_not_finite() == 2
    _take_steps(resumed, 1.0)
    assert resumed.first_step_not_finite() == 2
    resumed.begin_record()
    assert resumed.first_step_not_finite() is None
