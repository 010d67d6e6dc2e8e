"""The chain of hashes of a run: what a link covers, where links are, and which runs share a chain."""

import copy
import gc
import hashlib
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.batching import SampleStream
from pipeline.durations import BatchStage
from pipeline.training import hash_chain
from pipeline.training.hash_chain import LINK_EXAMPLES, MAX_LINKS, HashChain, first_difference, link_is_due
from pipeline.training.settings import TrainSettings
from pipeline.training.state import ChainLink, TrainState, start_state
from tests.fixtures.loop import N, train_bright
from tests.fixtures.slow import quick_first
from tests.fixtures.training import ALONE, TINY

SMALL = replace(TINY, network="small_cnn", steps=4)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "nesterov": True},
    "lars": {"momentum": 0.9, "nesterov": False, "trust_coefficient": 0.001},
    "adamw": {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8},
}


def _bytes(tensor: torch.Tensor) -> bytes:
    """As channels-last memory has them."""
    values = tensor.numpy()
    return values.transpose(0, 2, 3, 1).tobytes() if values.ndim == 4 else values.tobytes()


def test_a_link_is_what_the_docs_say() -> None:
    """Written down once more, for the last link of a run of two links."""
    state = start_state(SMALL, ALONE)
    for parameter in state.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    state.optimizer.step()
    members = np.arange(N) % 3 > 0
    state.step, state.links = 4, [ChainLink(step=2, sha256="ab" * 32)]
    chain = HashChain(state, SampleStream(members, SMALL.seed), SMALL.batch_sizes, ALONE)
    expected = hashlib.sha256(b"ab" * 32 + b" 4\n")
    ids, _ = SampleStream(members, SMALL.seed).samples(2 * 20, 2 * 20)
    expected.update(ids.tobytes())
    for name, value in state.model.state_dict().items():
        expected.update(f"model {name} torch.float32 {tuple(value.shape)}\n".encode() + _bytes(value))
    for name, parameter in state.model.named_parameters():
        momentum = state.optimizer.state[parameter]["momentum_buffer"]
        header = f"optimizer {name} momentum_buffer torch.float32 {tuple(momentum.shape)}\n"
        expected.update(header.encode() + _bytes(momentum))
    (last,) = chain.close()[1:]
    assert (last.step, last.sha256) == (4, expected.hexdigest())


def _set(tensor: torch.Tensor) -> None:
    """The least that a float32 can change by."""
    first = (0,) * tensor.ndim
    with torch.no_grad():
        tensor[first] = torch.nextafter(tensor[first], torch.tensor(torch.inf))


_CHANGES: dict[str, Callable[[TrainState], object]] = {
    "weight": lambda state: _set(next(iter(state.model.parameters()))),
    "buffer": lambda state: _set(state.model.get_buffer("backbone.layer4.1.bn2.running_var")),
    "momentum": lambda state: _set(state.optimizer.state[list(state.model.parameters())[-1]]["momentum_buffer"]),
    "average": lambda state: _set(list(state.average.parameters())[-1]) if state.average else None,
    "step": lambda state: setattr(state, "step", 3),
    "earlier link": lambda state: state.links.append(ChainLink(step=0, sha256="00" * 32)),
}


@pytest.fixture(scope="module")
def stepped() -> TrainState:
    """ResNet-18 after a step."""
    state = start_state(replace(TINY, ema_decay=0.9), ALONE)
    for parameter in state.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    state.optimizer.step()
    state.step = 2
    return state


def _last(state: TrainState, members: np.ndarray[Any, np.dtype[np.bool_]] | None = None) -> str:
    members = np.ones(N, dtype=np.bool_) if members is None else members
    before = list(state.links)
    sha256 = HashChain(state, SampleStream(members, TINY.seed), TINY.batch_sizes, ALONE).close()[-1].sha256
    state.links[:] = before
    return sha256


@pytest.mark.parametrize("change", quick_first(1, _CHANGES))
def test_every_part_of_a_run_counts(change: str, stepped: TrainState) -> None:
    """Down to one bit."""
    state = start_state(replace(TINY, ema_decay=0.9), ALONE)
    state.load_state_dict(copy.deepcopy(stepped.state_dict()), ALONE)
    assert _last(state) == _last(stepped)
    _CHANGES[change](state)
    assert _last(state) != _last(stepped)


def test_a_thread_hashes_the_state_at_the_time_of_the_link(stepped: TrainState) -> None:
    """As on a GPU, where the training goes on meanwhile; a saved state has all links."""
    links = []
    for device in ("cpu", "cuda"):
        state = start_state(replace(TINY, ema_decay=0.9), ALONE)
        state.load_state_dict(copy.deepcopy(stepped.state_dict()), ALONE)
        world = replace(ALONE, device=torch.device(device))
        chain = HashChain(state, SampleStream(np.ones(N, dtype=np.bool_), TINY.seed), TINY.batch_sizes, world)
        chain.add()
        assert state.average is not None
        with torch.no_grad():
            for tensor in (*state.model.parameters(), *state.average.state_dict().values()):
                tensor.add_(1)
        state.step += 1
        saved = state.state_dict()["links"]
        assert [link["step"] for link in saved] == [2]
        links.append(chain.close())
    assert links[0] == links[1]


def test_the_state_of_a_run_is_freed_with_the_run() -> None:
    """At once: the next run of a study chooses its passes by the memory that is free."""
    state = start_state(SMALL, ALONE)
    stream = SampleStream(np.ones(N, dtype=np.bool_), SMALL.seed)
    chain = HashChain(state, stream, SMALL.batch_sizes, replace(ALONE, device=torch.device("cuda")))
    chain.add()
    state.wait_for_links()
    freed = weakref.ref(state.optimizer)
    gc.disable()
    try:
        del state, chain
        assert freed() is None
    finally:
        gc.enable()


def test_an_error_of_the_hashing_thread_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    world = replace(ALONE, device=torch.device("cuda"))
    state, stream = start_state(SMALL, ALONE), SampleStream(np.ones(N, dtype=np.bool_), SMALL.seed)
    chain = HashChain(state, stream, SMALL.batch_sizes, world)
    monkeypatch.setattr(hash_chain, "_update", lambda *_: 1 / 0)
    chain.add()
    with pytest.raises(ZeroDivisionError):
        chain.close()
    assert state.links == []


def test_the_sample_ids_count(stepped: TrainState) -> None:
    (first, *_), _ = SampleStream(np.ones(N, dtype=np.bool_), TINY.seed).samples(0, 1)
    assert _last(stepped, np.arange(N) != first) != _last(stepped)


def test_strides_of_axes_of_length_one_do_not_count() -> None:
    """Those of a 1x1 filter in channels_last are ambiguous, and copies may have others."""
    filters = torch.arange(6.0).view(3, 2, 1, 1)
    same = filters.to(memory_format=torch.channels_last).as_strided((3, 2, 1, 1), (2, 1, 77, 99))
    for tensor in (filters, same):
        assert hash_chain._in_memory_order(tensor).numpy().tobytes() == filters.numpy().tobytes()


def test_hashing_makes_no_copy_of_dense_tensors() -> None:
    filters = torch.zeros(4, 3, 5, 5).to(memory_format=torch.channels_last)
    assert hash_chain._in_memory_order(filters).data_ptr() == filters.data_ptr()


def _steps(settings: TrainSettings) -> list[int]:
    return [step for step in range(1, settings.steps + 1) if link_is_due(settings, step)]


@pytest.mark.parametrize(
    ("batch_size", "steps", "expected"),
    [
        (256, 195, []),
        (256, 391, [196]),
        (20_480, 122, [8, 16, 23, 31, 39, 46, 54, 61, 69, 77, 84, 92, 100, 107, 115]),
        (6_272, 96, [8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88]),
        (100_000, 3, [1, 2]),
    ],
)
def test_links_are_where_the_settings_alone_say(batch_size: int, steps: int, expected: list[int]) -> None:
    assert _steps(replace(TINY, batch_size=batch_size, steps=steps)) == expected


def test_links_of_a_growing_batch_are_counted_in_images() -> None:
    stages = (BatchStage(batch_size=1_000, until_step=100),)
    assert _steps(replace(TINY, batch_size=50_000, batch_stages=stages, steps=103)) == [50, 100, 101, 102]


@given(batch_size=st.integers(1, 100_000), steps=st.integers(1, 400))
def test_links_are_few_and_far_between(batch_size: int, steps: int) -> None:
    steps_with_links = _steps(replace(TINY, batch_size=batch_size, steps=steps))
    assert len(steps_with_links) <= min(MAX_LINKS, batch_size * steps // LINK_EXAMPLES)
    assert steps not in steps_with_links


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_runs_of_equal_settings_have_equal_chains(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_chain, "LINK_EXAMPLES", 20)
    settings = replace(SMALL, optimizer=optimizer, optimizer_options=OPTIMIZERS[optimizer])
    links = train_bright(settings).links
    assert [link.step for link in links] == [1, 2, 3, 4]
    assert train_bright(settings).links == links
    other = train_bright(replace(settings, seed=4)).links
    assert not {link.sha256 for link in links} & {link.sha256 for link in other}


def test_a_difference_shows_from_its_step_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates that part at the third step."""
    monkeypatch.setattr(hash_chain, "LINK_EXAMPLES", 20)
    steps: dict[str, Any] = {"schedule": "step", "schedule_options": {"milestones": [2], "factor": 0.1}}
    constant = replace(SMALL, schedule="constant", schedule_options={})
    ours, theirs = (train_bright(settings).links for settings in (constant, replace(constant, **steps)))
    assert [one == other for one, other in zip(ours, theirs, strict=True)] == [True, True, False, False]


@pytest.mark.parametrize("network", quick_first(1, ["small_cnn", "resnet18"]))
def test_the_micro_batch_changes_no_link_of_exact_sums(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_chain, "LINK_EXAMPLES", 20)
    settings = replace(TINY, network=network, reduction="exact")
    assert train_bright(settings, micro_batch=10).links == train_bright(settings, micro_batch=20).links


def test_a_run_that_diverged_has_a_last_link_too() -> None:
    run = train_bright(replace(TINY, learning_rate=1e30, steps=6))
    assert run.diverged
    assert run.links[-1].step == run.history[-1].step


def _chain(text: str) -> list[ChainLink]:
    """Return a chain with a link for each letter, at steps 10, 20, ..."""
    return [ChainLink(step=10 * number, sha256=letter * 64) for number, letter in enumerate(text, start=1)]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("abc", "abc", None),
        ("", "", None),
        ("abc", "abd", (20, 30)),
        ("abc", "xbc", (0, 10)),
        ("abc", "ab", (20, 30)),
        ("", "a", (0, 10)),
        ("axc", "abc", (10, 20)),
    ],
)
def test_the_first_difference_of_two_chains_is_between_two_links(
    one: str, other: str, expected: tuple[int, int] | None
) -> None:
    assert first_difference(_chain(one), _chain(other)) == expected
    assert first_difference(_chain(other), _chain(one)) == expected


def test_links_at_other_steps_differ_from_the_earlier_step_on() -> None:
    moved = [ChainLink(step=15, sha256="a" * 64)]
    assert first_difference(_chain("a"), moved) == (0, 10)


def test_two_trainings_that_part_at_the_third_step_are_located(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_chain, "LINK_EXAMPLES", 20)
    constant = replace(SMALL, schedule="constant", schedule_options={})
    falling = replace(constant, schedule="step", schedule_options={"milestones": [2], "factor": 0.1})
    ours, theirs = (train_bright(settings).links for settings in (constant, falling))
    assert first_difference(ours, theirs) == (2, 3)
