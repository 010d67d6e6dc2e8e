"""torch.compile changes no result but by rounding, and works once for a study."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._inductor.config
from torch import Tensor
from torch._dynamo.utils import counters

from pipeline.distributed import World
from pipeline.errors import InputError
from pipeline.run_log import RunLog
from pipeline.training.evaluation import evaluate, load_images
from pipeline.training.loop import TrainData, train
from pipeline.training.numerics import compile_network
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings
from tests.fixtures.training import ALONE, TINY, bright_images, distance, parameters_of


@pytest.fixture(scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled code; compiling torch's headers, which all of it needs, takes seconds."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(autouse=True)
def _compiled_here(_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own folder may hold what was compiled for other vector instructions, which writes past its memory."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(_cache))


def _trained(settings: TrainSettings, world: World = ALONE) -> tuple[Tensor, float]:
    """Final weights and test loss."""
    pixels, labels = bright_images(60)
    images = load_images(pixels, settings, training=True, device=world.device)
    targets = torch.from_numpy(labels).to(world.device)
    run = train(
        settings, TrainData(images, targets, np.ones(60, dtype=np.bool_)),
        world=world, log=RunLog.silent(), options=RunOptions(micro_batch=20),
    )  # fmt: skip
    test = load_images(pixels, settings, training=False, device=world.device)
    return parameters_of(run.model), evaluate(run.model, test, targets, batch_size=25, world=world).loss


def test_without_a_compiler_it_says_so() -> None:
    # pytest's own monkeypatch would leave the setting deleted for the tests that follow.
    without = torch._inductor.config.patch({"cpp.cxx": ("/nonexistent",)})
    with (
        without,
        pytest.raises(InputError) as raised,
    ):
        compile_network(torch.nn.Linear(1, 1), torch.device("cpu"))
    assert raised.value.key == "compile"


def test_cuda_graphs_need_a_gpu() -> None:
    with pytest.raises(InputError) as raised:
        compile_network(torch.nn.Linear(1, 1), torch.device("cpu"), cuda_graphs=True)
    assert raised.value.key == "compile"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
def test_cuda_graphs_change_no_result() -> None:
    """Rounding, 1e-16, grows up to a thousand times a step with small BatchNorm groups: to 1e-7 in three."""
    settings, gpu = replace(TINY, network="resnet18", steps=3, bn_group=7), replace(ALONE, device=torch.device("cuda"))
    weights, loss = _trained(settings, gpu)
    replayed_weights, replayed_loss = _trained(replace(settings, compile="cuda_graphs"), gpu)
    assert distance(replayed_weights, weights) <= 1e-7
    assert replayed_loss == pytest.approx(loss, rel=1e-7)


@pytest.mark.slow
@pytest.mark.subprocess  # the C++ compiler
# torch's compiler inspects the code next to a graph break, such as keyed dropout, and warns about it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(("network", "bn_group"), [("small_cnn", 7), ("resnet18", None)])
def test_same_result_and_compiled_once(network: str, bn_group: int | None) -> None:
    """BatchNorm groups of several sizes, each compiled, dropout, another seed.

    Statistics and evaluation are not compiled.
    """
    torch.compiler.reset()
    counters.clear()
    settings = replace(TINY, network=network, steps=1, bn_group=bn_group)
    weights, loss = _trained(settings)
    compiled_weights, compiled_loss = _trained(replace(settings, compile=True))
    assert distance(compiled_weights, weights) <= 1e-12
    assert compiled_loss == pytest.approx(loss, rel=1e-12)
    graphs = counters["stats"]["unique_graphs"]
    assert graphs > 0
    _trained(replace(settings, compile=True, seed=1))
    assert counters["stats"]["unique_graphs"] == graphs
