"""Time training loops in turn, round by round, in one process."""

import argparse
import gc
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torchvision.models import get_model

from benchmarks.gpu_day.running import Row
from benchmarks.loop_speed import N_CLASSES, bare_steps, random_images, settings_for
from benchmarks.measuring import StepClock, ratio_spread, seconds_of
from pipeline import distributed
from pipeline.distributed import CommConfig, World, float32_arithmetic
from pipeline.errors import is_out_of_memory
from pipeline.models import build_network, small_maps
from pipeline.models.small_maps import SmallMapConv2d
from pipeline.run_log import RunLog
from pipeline.training import eval_weights
from pipeline.training.checkpointing import Checkpointer
from pipeline.training.evaluation import load_images
from pipeline.training.loop import TrainData, TrainedRun, train
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings

_WARM_UP = 4
"""Number of optimizer steps before the first timed one; in the second a step is captured."""

_MIN_STEPS, _MAX_STEPS = 1, 500
"""Number of optimizer steps of a loop in a round."""

Loop = Callable[[int], float]
"""Function from a number of optimizer steps to the seconds that they take."""


@dataclass(frozen=True, kw_only=True)
class TimingPlan:
    """Number of rounds; in each the reference loop runs for about `seconds`, the others for as many steps.

    Attributes:
        images: of the training loop's data set, at least two batches: with few images an epoch would begin every second
            step, and with it the work of an epoch.
    """

    rounds: int
    seconds: float
    images: int


REAL, TINY = TimingPlan(rounds=3, seconds=0.5, images=50_000), TimingPlan(rounds=1, seconds=0.0, images=0)


def settings_of(network: str, size: int, batch: int, **changes: Any) -> TrainSettings:
    """Return the settings of plain SGD with crop and flip on images of `size` pixels."""
    plain = settings_for(argparse.Namespace(network=network, image_size=size, batch_size=batch))
    return replace(plain, **changes)


def train_on(
    settings: TrainSettings,
    pixels: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    world: World,
    log: RunLog,
    checkpointer: Checkpointer | None = None,
    comm: CommConfig | None = None,
    captures: bool = True,
) -> TrainedRun:
    """Run the training loop on all images, uint8 (N, H, W, 3); BatchNorm's statistics come from one batch.

    Args:
        captures: on a GPU, replay the steps as CUDA graphs.
    """
    images = load_images(pixels, settings, training=True, device=world.device)
    targets, train_mask = torch.from_numpy(labels).to(world.device), np.ones(len(labels), dtype=np.bool_)
    with patch.object(eval_weights, "STATISTICS_IMAGES", 1):
        data = TrainData(images, targets, train_mask)
        capture: Literal["auto"] | None = "auto" if captures else None
        options = RunOptions(checkpointer=checkpointer, comm=comm or CommConfig(), graph_capture=capture)
        return train(settings, data, world=world, log=log, options=options)


def compare_with_bare(settings: TrainSettings, plan: TimingPlan) -> Row:
    """Compare the training loop with a bare loop on torchvision's network; the ratio is ours over bare.

    `bare` has the same precision as ours, and deterministic kernels. `bare_fastest` has TF32 and the kernels that cuDNN
    finds to be fastest, which may not be deterministic. `plain` is the training loop whose steps are not CUDA
    graphs.
    """
    with distributed.join_process_group("auto") as world:
        run = bare_steps(torchvision_network(settings), settings, world.device)
        loops = {
            "bare": timed(run, partial(float32_arithmetic, tf32=settings.precision == "tf32")),
            "bare_fastest": timed(run, partial(float32_arithmetic, tf32=True, fast=True)),
            "plain": _training_loop(settings, world, plan, captures=False),
            "ours": _training_loop(settings, world, plan),
        }
        return in_turn(loops, settings.batch_size, plan, over="bare")


def compare_with_compiled(settings: TrainSettings, plan: TimingPlan) -> Row:
    """Compare the training loop with and without torch.compile; compiling is not timed.

    The ratio is compiled over plain.
    """
    with distributed.join_process_group("auto") as world:
        loops = {
            "ours": _training_loop(settings, world, plan),
            "compiled": _training_loop(replace(settings, compile=True), world, plan),
        }
        return in_turn(loops, settings.batch_size, plan, over="ours")


def compare_with_graphs(settings: TrainSettings, plan: TimingPlan) -> Row:
    """Compare the training loop with and without CUDA graphs of its compiled passes; the ratio is with over without.

    Without a GPU there are no graphs: the loop is compiled alone.
    """
    compiled = replace(settings, compile="cuda_graphs" if torch.cuda.is_available() else True)
    with distributed.join_process_group("auto") as world:
        loops = {"ours": _training_loop(settings, world, plan), "graphs": _training_loop(compiled, world, plan)}
        return in_turn(loops, settings.batch_size, plan, over="ours")


def compare_bare_graph(settings: TrainSettings, plan: TimingPlan) -> Row:
    """Compare a bare step with the same step, with its update, as one CUDA graph; the ratio is the graph over plain."""
    with distributed.join_process_group("auto") as world:
        run = bare_steps(torchvision_network(settings), settings, world.device)
        exact = partial(float32_arithmetic, tf32=settings.precision == "tf32")
        with exact():
            graph = _one_graph(run, world.device)
        loops = {"bare": timed(run, exact), "bare_graph": timed(graph, exact)}
        return in_turn(loops, settings.batch_size, plan, over="bare")


def _one_graph(run: Callable[[int], None], device: torch.device) -> Callable[[int], None]:
    """Return a function that replays a step of `run` as one CUDA graph."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        run(3)  # torch asks for a few steps before it captures
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(1)

    def replay(steps: int) -> None:
        for _ in range(steps):
            graph.replay()

    return replay


def torchvision_network(settings: TrainSettings) -> nn.Module:
    """Return torchvision's network with the stem of the settings."""
    model: nn.Module = get_model(settings.network, weights=None, num_classes=N_CLASSES)
    if settings.stem == "cifar":
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return model


def compare_with_plain_convolutions(settings: TrainSettings, plan: TimingPlan) -> Row:
    """Compare the two forms of a network's convolutions on one batch; the ratio is small maps over plain.

    On a GPU both are also timed as one CUDA graph: launching the products takes longer than running them.
    """
    with distributed.join_process_group("auto") as world, products_everywhere():
        run = bare_steps(build_network(settings.network, N_CLASSES, stem=settings.stem, seed=0), settings, world.device)
        exact = partial(float32_arithmetic, tf32=settings.precision == "tf32")
        loops = {"plain": timed(run, exact, plain_convolutions), "small_maps": timed(run, exact)}
        row = in_turn(loops, settings.batch_size, plan, over="plain")
        if world.device.type != "cuda":
            return row
        with exact():
            products = _one_graph(run, world.device)
            with plain_convolutions():
                plain = _one_graph(run, world.device)
        graphs = {"plain_graph": timed(plain, exact), "small_maps_graph": timed(products, exact)}
        captured = in_turn(graphs, settings.batch_size, plan, over="plain_graph")
        return {**row, **{name: captured[name] for name in graphs}, "graph_ratio": captured["ratio"]}


@contextmanager
def products_everywhere() -> Iterator[None]:
    """Inside the context, networks compute small maps as products on GPUs too, whatever the batch and precision."""
    with patch.object(small_maps, "_smallest_gpu_batch", return_value=1):
        yield


@contextmanager
def plain_convolutions() -> Iterator[None]:
    """Inside the context, networks compute small maps as torch does."""
    with patch.object(SmallMapConv2d, "forward", nn.Conv2d.forward):
        yield


def reset_peak_memory() -> None:
    """Start the measurement of `peak_gib`."""
    if torch.cuda.is_available():
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float | None:
    """Return the peak GPU memory of tensors, in GiB; None without a GPU."""
    return round(torch.cuda.max_memory_allocated() / 2**30, 2) if torch.cuda.is_available() else None


def _training_loop(settings: TrainSettings, world: World, plan: TimingPlan, *, captures: bool = True) -> Loop:
    pixels, labels = random_images(max(2 * settings.batch_size, plan.images), settings.format.image_size)

    def seconds(steps: int) -> float:
        clock = StepClock(_WARM_UP, _WARM_UP + steps)
        train_on(replace(settings, steps=_WARM_UP + steps), pixels, labels, world=world, log=clock, captures=captures)
        return clock.seconds

    return seconds


def timed(run: Callable[[int], None], *contexts: Callable[[], AbstractContextManager[None]]) -> Loop:
    """Return a loop that runs in all contexts and waits for the GPU."""

    def seconds(steps: int) -> float:
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context())
            run(_WARM_UP)
            seconds_of(lambda: None)  # waits for the GPU
            return seconds_of(lambda: run(steps))

    return seconds


def in_turn(loops: Mapping[str, Loop], batch: int, plan: TimingPlan, *, over: str) -> Row:
    """Return the median images/s of each loop, and the ratio of the last loop to the loop `over` within rounds.

    A loop that runs out of memory, as a bare one may with a batch that ours divides, is None.
    """
    reset_peak_memory()
    fits = {name: loop for name, loop in loops.items() if _fits(loop)}
    last = [*loops][-1]
    if last not in fits:
        raise RuntimeError(f"{last}: a batch of {batch} does not fit the memory")
    probe = fits.get(over, fits[last])(2 * _MIN_STEPS) / (2 * _MIN_STEPS)
    steps = min(_MAX_STEPS, max(_MIN_STEPS, math.ceil(plan.seconds / probe)))
    rounds = [{name: steps * batch / loop(steps) for name, loop in fits.items()} for _ in range(plan.rounds)]
    medians = {name: float(np.median([rates[name] for rates in rounds])) for name in fits}
    ratios: Row = {"ratio": None, "lowest": None, "highest": None}
    if over in fits:
        spread = ratio_spread([rates[last] / rates[over] for rates in rounds])
        ratios = {"ratio": spread["ratio_median"], "lowest": spread["ratio_min"], "highest": spread["ratio_max"]}
    return {
        **{name: round(medians[name]) if name in fits else None for name in loops},
        **ratios,
        "ms_a_step": round(1000 * batch / medians[last], 3),
        "steps": steps,
        "peak_gib": peak_gib(),
    }


def _fits(loop: Loop) -> bool:
    """Run a loop for the first time; return whether the memory is enough."""
    try:
        loop(_MIN_STEPS)
    except Exception as error:
        # Libraries report a full memory by errors of many classes; all others are raised again.
        if not is_out_of_memory(error):
            raise
    else:
        return True
    # Outside the handler, whose exception keeps the tensors of the step alive.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return False
