"""What a checkpoint can hold, that it comes back as it was, and which of them are kept."""

import hashlib
import math
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipeline.training.checkpointing import Checkpoints, remove_stale_checkpoints
from tests.fixtures.checkpoints import files, never, same, state_of, steps

# What can be saved


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any dense layout: a contiguous tensor with its dimensions permuted."""
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]))
    order = draw(st.permutations(range(len(shape))))
    values = draw(st.lists(st.integers(0, 255), min_size=math.prod(shape), max_size=math.prod(shape)))
    return torch.tensor(values, dtype=torch.float64).reshape(shape).to(dtype).permute(order)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
keys = st.text(max_size=5) | st.integers()
states = st.dictionaries(
    keys,
    st.recursive(
        scalars | tensors(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=4).map(tuple)
            | st.dictionaries(keys, inner, max_size=4)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(states)
@example({"large": 2**2038, "small": -(2**2038), "surrogate": "\ud800"})
def test_a_state_comes_back_as_it_was(tmp_path: Path, state: dict[Any, Any]) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(3, state)
    (first,) = files(tmp_path)
    content = first.read_bytes()
    newest = checkpoints.load_latest(never)
    assert newest is not None
    assert newest[0] == 3
    assert same(newest[1], state)
    # Saved again it is the same file: equal states, equal bytes.
    checkpoints.save(3, newest[1])
    assert files(tmp_path) == [first]
    assert first.read_bytes() == content


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, torch.uint16, torch.complex64, torch.float8_e4m3fn])
def test_unusual_types_of_numbers_survive(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).t().to(dtype)
    Checkpoints(tmp_path).save(0, {"t": tensor})
    newest = Checkpoints(tmp_path).load_latest(never)
    assert newest is not None
    assert same(newest[1]["t"], tensor)


def test_a_training_step_after_a_resume_is_bitwise_the_same(tmp_path: Path) -> None:
    """A network in channels_last with its optimizer's own state dict, tuples and int keys in it."""

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
        model = model.to(memory_format=torch.channels_last)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    with torch.random.fork_rng():
        model, optimizer = build()
        step(model, optimizer)
        Checkpoints(tmp_path).save(1, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        step(model, optimizer)
        resumed, resumed_optimizer = build()
    newest = Checkpoints(tmp_path).load_latest(never)
    assert newest is not None
    resumed.load_state_dict(newest[1]["model"])
    resumed_optimizer.load_state_dict(newest[1]["optimizer"])
    step(resumed, resumed_optimizer)
    assert same(dict(resumed.state_dict()), dict(model.state_dict()))
    assert resumed.get_parameter("0.weight").stride() == (27, 1, 9, 3)


def test_bytes_know_nothing_of_how_a_state_came_about(tmp_path: Path) -> None:
    """Views, tied tensors and shared strings are the same values as their copies."""
    base = torch.arange(100.0)
    tied, text = torch.arange(3.0), "".join(["mo", "mentum"])
    pieces: dict[str, Any] = {"view": base[10:20], "a": tied, "b": tied, text: text, "list": [text, "momentum"]}
    copies: dict[str, Any] = {
        "view": base[10:20].clone(), "a": tied.clone(), "b": torch.nn.Parameter(tied.clone()),
        "momentum": "momentum", "list": ["".join(["momen", "tum"]), "".join(["m", "omentum"])],
    }  # fmt: skip
    for folder, state in (("pieces", pieces), ("copies", OrderedDict(copies))):
        Checkpoints(tmp_path / folder).save(1, state)
    (left,), (right,) = files(tmp_path / "pieces"), files(tmp_path / "copies")
    assert (left.name, left.read_bytes()) == (right.name, right.read_bytes())


class _Pair(NamedTuple):
    x: int


_REFUSED: dict[str, Any] = {
    "an array": np.zeros(3),
    "a numpy float, which is a float": np.float64(0.1),
    "a set": {1},
    "bytes": b"x",
    "a complex number": 1j,
    "a named tuple": _Pair(1),
    "an object": Path("x"),
    "a function": len,
    "a random state": np.random.default_rng(0).bit_generator.state["state"] | {"generator": np.random.default_rng(0)},
    "a sparse tensor": torch.eye(2).to_sparse(),
    "a tensor without data": torch.empty(2, device="meta"),
    "a number longer than can be loaded": 2**2039,
    "a key that is not text or int": {1.5: 1},
    "a key that is a bool": {True: 1},
}


@pytest.mark.parametrize("kind", _REFUSED)
def test_what_could_not_be_loaded_is_refused_when_saved(tmp_path: Path, kind: str) -> None:
    with pytest.raises(TypeError, match=r"^state\['outer'\]\[1\]"):
        Checkpoints(tmp_path).save(1, {"outer": [0, _REFUSED[kind]]})
    assert files(tmp_path) == []


# What is on the disk


def test_there_is_none_at_first(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "absent").load_latest(never) is None
    Checkpoints(tmp_path / "absent").clear()
    assert files(tmp_path) == []


def test_a_file_is_named_by_its_digest_and_any_tool_can_load_it(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(12, {"x": 1.5})
    (path,) = files(tmp_path)
    assert path.name == f"step-000000012.{hashlib.sha256(path.read_bytes()).hexdigest()}.pt"
    assert torch.load(path, weights_only=True) == {"step": 12, "state": {"x": 1.5}}


def test_the_newest_are_kept_in_the_order_of_steps(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    seen = []
    for step in (8, 9, 10, 10**9, 10**10):  # neither order of names nor width of numbers counts
        checkpoints.save(step, state_of(step))
        seen.append(steps(tmp_path))
        newest = checkpoints.load_latest(never)
        assert newest is not None
        assert newest[0] == step
    assert [sorted(kept) for kept in seen] == [[8], [8, 9], [8, 9, 10], [9, 10, 10**9], [10, 10**9, 10**10]]


def test_a_run_that_went_back_leaves_nothing_of_its_former_future(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (10, 20, 30):
        checkpoints.save(step, state_of(step))
    checkpoints.save(25, state_of(25))
    assert steps(tmp_path) == [20, 25]
    checkpoints.save(25, {"other": 1})  # the same step again
    assert steps(tmp_path) == [20, 25]
    assert checkpoints.load_latest(never) == (25, {"other": 1})


def test_clear_leaves_strangers_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    checkpoints = Checkpoints(folder)
    checkpoints.save(1, state_of(1))
    checkpoints.clear()
    assert not folder.exists()
    checkpoints.save(1, state_of(1))
    (folder / f".step-1.pt.{os.getpid()}.tmp").write_text("of a killed process with our number")
    (folder / "notes.txt").write_text("kept")
    (folder / "step-1.pt").write_text("kept")
    checkpoints.clear()
    assert {path.name for path in files(folder)} == {"notes.txt", "step-1.pt"}
    assert checkpoints.load_latest(never) is None


def test_a_folder_with_a_checkpoints_name_is_none(tmp_path: Path) -> None:
    folder = tmp_path / f"step-9.{'0' * 64}.pt"
    folder.mkdir()
    Checkpoints(tmp_path).save(1, state_of(1))
    newest = Checkpoints(tmp_path).load_latest(never)
    assert newest is not None
    assert newest[0] == 1
    Checkpoints(tmp_path).clear()
    assert files(tmp_path) == [folder]


def test_a_clear_cut_short_leaves_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2, 3):
        checkpoints.save(step, state_of(step))
    gone: list[Path] = []
    monkeypatch.setattr(Path, "unlink", lambda path: gone.append(path))
    checkpoints.clear()
    assert gone == files(tmp_path)  # by step, ascending


def test_older_ones_go_only_when_the_new_one_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the order of system calls: written, flushed, named, folder flushed, and then removed."""
    calls: list[str] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def note(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return call(*args, **kwargs)

        return note

    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, state_of(1))
    monkeypatch.setattr(Path, "write_bytes", noted("write", Path.write_bytes))
    monkeypatch.setattr(os, "fsync", noted("fsync", os.fsync))
    monkeypatch.setattr(Path, "replace", noted("rename", Path.replace))
    monkeypatch.setattr(Path, "unlink", noted("remove", Path.unlink))
    checkpoints.save(2, state_of(2))
    # The first removal is of the temporary file, which is there no more.
    assert calls == ["write", "fsync", "rename", "fsync", "remove", "remove"]
    assert steps(tmp_path) == [2]


def test_all_runs_of_a_folder_are_cleared_and_nothing_else(tmp_path: Path) -> None:
    remove_stale_checkpoints(tmp_path / "nowhere", max_age_s=0)
    study, other = tmp_path / "study", tmp_path / "other"
    for folder in (study / "a", study / "b", other / "a"):
        Checkpoints(folder).save(1, {})
    (study / "b" / ".step-000000002.x.pt.1.tmp").write_text("half")
    remove_stale_checkpoints(study, max_age_s=60)
    assert len(files(study / "a")) == 1
    remove_stale_checkpoints(study, max_age_s=0)
    assert not study.exists()
    assert len(files(other / "a")) == 1
    Checkpoints(other / "b").save(1, {})
    (other / "b" / "notes.txt").write_text("mine")
    remove_stale_checkpoints(other, max_age_s=0)
    assert [path.relative_to(other).as_posix() for path in other.rglob("*")] == ["b", "b/notes.txt"]
