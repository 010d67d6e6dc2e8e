"""How many images the BatchNorm statistics of a run are computed from."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.training.eval_weights import STATISTICS_IMAGES, statistics_batches

_STEPS, _BATCHES = st.integers(1, 10**6), st.integers(2, 20480)


@pytest.mark.parametrize(
    ("steps", "batch_size", "batches"),
    [
        (24, 16, 24),  # tiny: as many as the run trains on
        (40, 32, 16),  # 512 images
        (40, 256, 3),  # 640 of 10,240 images are 2.5 batches
        (40, 512, 3),
        (128, 256, 8),  # from 32,768 images on, 2,048
        (10**6, 256, 8),
        (100, 2048, 1),
        (3, 20480, 1),
    ],
)
def test_the_number_of_batches(steps: int, batch_size: int, batches: int) -> None:
    assert statistics_batches(steps * batch_size, batch_size) == batches


@given(_STEPS, _BATCHES)
def test_passes_are_a_sixteenth_of_the_steps_of_512_images_at_most(steps: int, batch_size: int) -> None:
    batches = statistics_batches(steps * batch_size, batch_size)
    assert 1 <= batches <= min(steps, max(math.ceil(steps / 16), math.ceil(512 / batch_size)))
    assert batches * batch_size < STATISTICS_IMAGES + batch_size


@given(_STEPS, _BATCHES)
def test_a_longer_run_has_no_fewer(steps: int, batch_size: int) -> None:
    assert statistics_batches((steps + 1) * batch_size, batch_size) >= statistics_batches(
        steps * batch_size, batch_size
    )
