"""TF32 is on while a recipe that asks for it trains, and nowhere else. The flags can be set without a GPU."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipeline import distributed
from pipeline.commands.plan import speed
from pipeline.distributed import float32_arithmetic
from pipeline.landscape import study as landscape
from pipeline.landscape.curvature import DISTANCES, LandscapeMeasurement, TopEigenvalue
from pipeline.models import build_network
from pipeline.simulator import job
from pipeline.training.evaluation import Evaluation, evaluate, load_images
from pipeline.training.weights import TrainedNetwork
from tests.fixtures.loop import train_bright
from tests.fixtures.training import ALONE, NAMES, TINY, bright_images

_CUDA: tuple[Any, Any] = torch.backends.cuda.matmul, torch.backends.cudnn


def _flags() -> tuple[bool, bool, bool]:
    matmul, cudnn = _CUDA
    return matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic


_IEEE, _TF32, _FAST = (False, False, True), (True, True, True), (True, True, False)


@pytest.fixture(autouse=True)
def coarse() -> Iterator[tuple[bool, bool, bool]]:
    """A process whose flags are all against us; the test must leave them so."""
    before = _flags()
    matmul, cudnn = _CUDA
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = coarse = (True, True, False)
    yield coarse
    left = _flags()
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before
    assert left == coarse


class _Noting(nn.Module):
    """Says zero of every class, and notes the flags of its forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[bool, bool, bool]] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(_flags())
        return self.weight * torch.ones(len(images), len(NAMES))


@pytest.mark.parametrize("tf32", [True, False])
def test_while_active_and_no_longer(tf32: bool, coarse: tuple[bool, bool, bool]) -> None:
    def fail() -> None:
        with float32_arithmetic(tf32=tf32):
            assert _flags() == (tf32, tf32, True)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert _flags() == coarse


def _precisions() -> list[str]:
    mkldnn: Any = torch.backends.mkldnn
    several = torch.backends, *_CUDA, _CUDA[1].conv, _CUDA[1].rnn, mkldnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn
    return [backend.fp32_precision for backend in several]


@pytest.fixture
def reset(coarse: tuple[bool, bool, bool]) -> Iterator[None]:
    """A process in torch's default state of both interfaces, and again at the end."""
    matmul, cudnn = _CUDA
    matmul.allow_tf32, cudnn.allow_tf32 = False, True
    several = torch.backends, matmul, cudnn, cudnn.conv, cudnn.rnn
    before = [backend.fp32_precision for backend in several]
    yield
    torch.backends.mkldnn.set_flags(_fp32_precision="none")
    for backend, precision in zip(several, before, strict=True):
        backend.fp32_precision = precision
    torch.set_float32_matmul_precision("highest")
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = coarse


@pytest.mark.usefixtures("reset")
@pytest.mark.parametrize("setting", ["all", "matmul", "conv", "mkldnn", "medium"])
@pytest.mark.parametrize("tf32", [True, False])
def test_a_caller_may_use_the_interface_of_newer_torch(tf32: bool, setting: str) -> None:
    """Of its two interfaces torch reads one as an error after the other was used."""
    matmul, cudnn = _CUDA
    mkldnn: Any = torch.backends.mkldnn
    if setting == "medium":
        torch.set_float32_matmul_precision("medium")
    elif setting == "mkldnn":
        mkldnn.set_flags(_fp32_precision="bf16")
    else:
        matmul.fp32_precision = "none"  # follows the general one
        backend: Any = {"all": torch.backends, "matmul": matmul, "conv": cudnn.conv}[setting]
        backend.fp32_precision = "ieee" if tf32 else "tf32"
    before = _precisions()
    wanted = "tf32" if tf32 else "none"
    with float32_arithmetic(tf32=tf32):
        assert _flags() == (tf32, tf32, True)
        assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == (wanted, wanted)
        assert matmul.fp32_precision == ("tf32" if tf32 else "ieee")
        assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")
        assert mkldnn.matmul.fp32_precision == "none"
    assert _precisions() == before
    if setting == "all":
        backend.fp32_precision = other = "tf32" if tf32 else "ieee"
        assert matmul.fp32_precision == other, "the special setting still follows the general one"
    if setting == "medium":
        assert torch.get_float32_matmul_precision() == "medium"


def test_all_stages_and_trials_start_in_full_precision() -> None:
    with distributed.join_process_group("auto"):
        assert _flags() == _IEEE


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"precision": "fp32"}, _IEEE),
        ({"precision": "tf32"}, _TF32),
        ({"precision": "bf16"}, _IEEE),
        ({"precision": "bf16", "fast": True}, _FAST),
    ],
    ids=str,
)
def test_training_is_in_the_precision_of_its_recipe(
    settings: dict[str, Any], expected: tuple[bool, bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[bool, bool, bool]] = set()
    forward = torch.nn.functional.cross_entropy

    def noting(*arguments: Any, **options: Any) -> Tensor:
        seen.add(_flags())
        assert torch.backends.cudnn.benchmark == settings.get("fast", False)
        return forward(*arguments, **options)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", noting)
    train_bright(replace(TINY, network="small_cnn", steps=1, **settings))
    assert seen == {expected}


def test_evaluation_within_a_tf32_training_is_in_full_precision() -> None:
    model = _Noting()
    pixels, labels = bright_images(4)
    images = load_images(pixels, TINY, training=False, device=ALONE.device)

    def evaluation(_: nn.Module) -> Evaluation:
        return evaluate(model, images, torch.from_numpy(labels), batch_size=2, world=ALONE)

    tf32 = replace(TINY, network="small_cnn", precision="tf32", fast=True, steps=2, accuracy_steps=1)
    train_bright(tf32, eval_fn=evaluation)
    assert model.seen == [_IEEE] * 2


def test_predictions_are_in_full_precision_in_a_users_process() -> None:
    model: Any = _Noting()
    network = TrainedNetwork(model=model, network="small_cnn", class_names=NAMES, format=TINY.format)
    network.predict(np.zeros((3, 16, 16, 3), np.uint8))
    assert model.seen == [_IEEE]


@pytest.mark.parametrize(
    ("arithmetic", "expected"),
    [({}, _IEEE), ({"tf32": True}, _TF32), ({"fast": True}, _FAST)],
    ids=str,
)
def test_plan_times_a_network_in_the_precision_of_its_recipe(
    arithmetic: dict[str, Any], expected: tuple[bool, bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[bool, bool, bool]] = set()

    def time_call(function: Callable[[], object], _: torch.device) -> float:
        function()
        seen.add(_flags())
        return 1.0

    monkeypatch.setattr(speed, "_time_call", time_call)
    workload = speed.Workload(
        network="small_cnn", stem="imagenet", crop_size=16, n_classes=10, threads=torch.get_num_threads(), **arithmetic
    )
    speed.measure(workload, {2}, torch.device("cpu"), seconds=0.0)
    assert seen == {expected}


def test_the_simulator_times_a_network_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _Noting()
    monkeypatch.setattr(job, "_model", lambda *_, **__: model)
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", lambda scores, _: scores.sum())
    job.measured_job("", image_size=16, n_classes=len(NAMES), local_batch=2, device=torch.device("cpu"))
    assert set(model.seen) == {_IEEE}


def test_landscapes_are_in_full_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, bool, bool]] = []

    def measure(*_: Any, **__: Any) -> LandscapeMeasurement:
        seen.append(_flags())
        top = TopEigenvalue(value=1.0, residual=0.0, products=1, converged=True)
        return LandscapeMeasurement(loss=1.0, top=top, slices=np.ones((1, len(DISTANCES))))

    trained = TrainedNetwork(
        model=build_network("small_cnn", len(NAMES), stem="imagenet", seed=0), network="small_cnn", class_names=NAMES,
        format=TINY.format,
    )  # fmt: skip
    monkeypatch.setattr(landscape, "measure", measure)
    monkeypatch.setattr(landscape, "load_trained", lambda *_: trained)
    method = landscape.Method(images=2, directions=1, seed=0)
    measurer = landscape.NetworkMeasurer({}, method, data_digest="", folder=tmp_path, device=ALONE.device)
    monkeypatch.setattr(measurer, "_load", lambda *_: (torch.zeros(2, 3, 16, 16), torch.zeros(2)))
    measurer._measured(tmp_path / "weights.pt", "digest", "train")
    assert seen == [_IEEE]
