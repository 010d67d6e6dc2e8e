"""How many images pass forward at a time: halving on out-of-memory, and whole BatchNorm groups."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pipeline import distributed
from pipeline.batching import merge_micro_batches, worker_slices
from pipeline.errors import InputError, OutOfMemory
from pipeline.training import memory
from pipeline.training.memory import CPU_MICRO_BATCH, activation_bytes, choose_micro_batch, halve_until_fits

_CPU, _GPU = torch.device("cpu"), torch.device("cuda")


class _Memory:
    """Takes so many images at a time; `tried` lists the attempts."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.tried: list[int] = []

    def __call__(self, max_size: int) -> None:
        self.tried.append(max_size)
        if max_size > self._room:
            raise torch.OutOfMemoryError("made up")


def _choose(requested: Any = "auto", *, batch: int = 64, workers: int = 4, **options: Any) -> int:
    arguments = {
        "device": _CPU,
        "bytes_per_sample": lambda: 1.0,
        "try_pass": _Memory(0),
        "local_world_size": 1,
        **options,
    }
    return choose_micro_batch(requested, [worker_slices(batch, workers)], **arguments)


def test_halving_by_hand() -> None:
    room = _Memory(40)
    assert halve_until_fits(256, 20, room) == 32
    assert room.tried == [256, 128, 64, 32]
    room = _Memory(40)
    assert halve_until_fits(200, 30, room) == 30  # not 25: a group is not cut
    assert room.tried == [200, 100, 50, 30]


@given(group=st.integers(2, 50), times=st.integers(1, 40), room=st.integers(1, 3000))
def test_what_is_found_fits_and_its_double_does_not(group: int, times: int, room: int) -> None:
    whole, available = group * times, _Memory(room)
    if room < group:
        with pytest.raises(OutOfMemory) as raised:
            halve_until_fits(whole, group, available)
        assert raised.value.key == "micro_batch"
        assert re.findall(r"\d+", str(raised.value)) == [str(group)]
        assert available.tried[-1] == group
        return
    max_size = halve_until_fits(whole, group, available)
    assert group <= max_size <= min(room, whole)
    assert max_size in (whole, group) or 2 * max_size + 1 > room
    assert available.tried == sorted(set(available.tried), reverse=True)


def test_one_rank_out_of_memory_halves_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    others = iter([True, False])
    monkeypatch.setattr(distributed, "any_rank", lambda failed: failed or next(others))
    room = _Memory(1000)
    assert halve_until_fits(64, 4, room) == 32
    assert room.tried == [64, 32]


def test_other_errors_are_not_hidden() -> None:
    bug = RuntimeError("a bug")

    def fail(max_size: int) -> None:
        raise bug

    with pytest.raises(RuntimeError) as raised:
        halve_until_fits(64, 4, fail)
    assert raised.value is bug


def test_a_cpu_or_a_library_that_runs_out_halves_too() -> None:
    tried = []

    def try_pass(max_size: int) -> None:
        tried.append(max_size)
        if max_size > 32:
            torch.empty(2**50, dtype=torch.uint8)
        if max_size > 16:
            raise RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")

    assert halve_until_fits(64, 4, try_pass) == 16
    assert tried == [64, 32, 16]


def test_tensors_of_a_failed_pass_are_let_go_before_the_next() -> None:
    alive: list[int] = []

    class Big:
        def __init__(self) -> None:
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    n_alive: list[int] = []

    def try_pass(max_size: int) -> None:
        n_alive.append(len(alive))
        big = Big()  # noqa: F841 - its frame is what an exception holds on to
        if max_size > 16:
            raise torch.OutOfMemoryError("made up")

    assert halve_until_fits(64, 4, try_pass) == 16
    assert n_alive == [0, 0, 0]


def test_what_was_requested_is_taken_without_trying() -> None:
    room = _Memory(0)
    assert _choose(16, try_pass=room) == 16
    assert room.tried == []


def test_a_request_above_what_a_rank_has_is_what_it_has() -> None:
    assert _choose(1000, batch=64) == 64


def test_a_request_below_a_group_is_refused() -> None:
    with pytest.raises(InputError) as raised:
        _choose(15)
    assert raised.value.key == "micro_batch"


def test_a_gpu_is_tried_with_all_of_a_ranks_images_first() -> None:
    room = _Memory(40)
    assert _choose(device=_GPU, try_pass=room) == 32
    assert room.tried == [64, 32]


def _free(monkeypatch: pytest.MonkeyPatch, images: int) -> None:
    """Room for so many images of one byte on this node."""
    monkeypatch.setattr(memory, "_free_at_start", lambda: images / memory._CPU_SHARE)


@pytest.mark.parametrize(
    ("images", "local_world_size", "chosen"), [(10**9, 1, 64), (40, 1, 40), (40, 2, 20), (16, 1, 16), (33, 2, 16)]
)
def test_a_cpu_goes_by_what_is_free(
    monkeypatch: pytest.MonkeyPatch, images: int, local_world_size: int, chosen: int
) -> None:
    _free(monkeypatch, images)
    assert _choose(local_world_size=local_world_size) == chosen


def test_a_cpu_takes_no_more_than_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    _free(monkeypatch, 10**9)
    assert _choose(batch=4096, workers=64) == CPU_MICRO_BATCH
    assert _choose(batch=4096, workers=2) == 2048  # a group is not cut


def test_a_group_that_does_not_fit_a_cpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _free(monkeypatch, 15)
    with pytest.raises(OutOfMemory) as raised:
        _choose()
    assert raised.value.key == "micro_batch"
    assert " of a batch of 64 " in str(raised.value)


@given(batch=st.integers(2, 3000), workers=st.integers(1, 16), room=st.integers(2, 3000))
def test_what_is_chosen_can_be_planned(batch: int, workers: int, room: int) -> None:
    parts = worker_slices(batch, workers)
    if room < max(part.size for part in parts):
        return
    chosen = choose_micro_batch(
        "auto", [parts], device=_GPU, bytes_per_sample=lambda: 1.0, try_pass=_Memory(room), local_world_size=1
    )
    assert max(part.size for part in merge_micro_batches(parts, chosen)) <= room


def _forward(model: nn.Module, inputs: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: model(inputs)


def test_activations_are_counted_by_hand() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    # Kept: the input of the first layer and the output of the rectifier, which is the second's input.
    assert activation_bytes(model, _forward(model, torch.randn(2, 4))) == 2 * 4 * 4 + 2 * 8 * 4


def test_activations_grow_with_the_images() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    of = {n: activation_bytes(model, _forward(model, torch.randn(n, 3, 4, 4))) for n in (1, 5)}
    assert of[5] == 5 * of[1] > 0
