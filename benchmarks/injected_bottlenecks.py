"""Inject a bottleneck into a training, a slow loader, network or rank, and print the verdict of `diagnose`.

Uses two real ranks by default, with 0.1 s or more per forward pass. Each bottleneck is injected at several strengths
and measured as `python -m pipeline diagnose` does. The command starts its ranks.

    python -m benchmarks.injected_bottlenecks
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from benchmarks.loop_speed import N_CLASSES, settings_for
from benchmarks.measuring import print_results
from benchmarks.printing import Row
from pipeline import distributed
from pipeline.artifacts.files import read_json, write_json
from pipeline.batching import BatchSlice, GlobalBatch
from pipeline.commands.diagnose.bottleneck import Diagnosis, diagnose
from pipeline.commands.diagnose.timing import Training, measure
from pipeline.datasets.resident import ResidentImages
from pipeline.distributed import World
from pipeline.training.evaluation import load_images
from pipeline.training.gradients import TrainLoss

_COMPUTE_S = 0.1
"""Seconds added to each forward pass on every rank: large compared with the noise of a busy machine."""

_IMAGES, _IMAGE_SIZE, _BATCH_OF_ONE = 40, 8, 10

Fault = AbstractContextManager[object]


def slow_loader(seconds: float, world: World) -> Fault:  # noqa: ARG001 - signature of all faults
    """Make reading a batch slower."""
    read = ResidentImages.training_batch

    def training_batch(images: ResidentImages, sample_ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        time.sleep(seconds)
        return read(images, sample_ids, epochs)

    return patch.object(ResidentImages, "training_batch", training_batch)


def delayed_all_reduce(seconds: float, world: World) -> Fault:
    """Make the last bucket's all-reduce slower."""
    wrap = distributed.data_parallel

    def delayed(state: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:  # noqa: ARG001 - torch's signature
        if bucket.is_last():
            time.sleep(seconds)
        summed = torch.distributed.all_reduce(bucket.buffer().div_(world.size), async_op=True).get_future()
        return summed.then(lambda done: done.value()[0])

    def data_parallel(model: nn.Module, device: torch.device, *_: object) -> nn.Module:
        wrapped = wrap(model, device)
        assert isinstance(wrapped, DistributedDataParallel)
        wrapped.register_comm_hook(None, delayed)
        return wrapped

    return patch.object(distributed, "data_parallel", data_parallel)


def slow_forward(seconds: float, world: World) -> Fault:  # noqa: ARG001 - signature of all faults
    """Make the forward pass slower on every rank: computation, not a bottleneck."""
    forward = TrainLoss.summed_loss

    def summed_loss(train_loss: TrainLoss, model: nn.Module, batch: GlobalBatch, part: BatchSlice) -> Tensor:
        time.sleep(seconds)
        return forward(train_loss, model, batch, part)

    return patch.object(TrainLoss, "summed_loss", summed_loss)


def slow_rank(seconds: float, world: World) -> Fault:
    """Make the last rank's forward pass slower."""
    return slow_forward(seconds if world.rank == world.size - 1 else 0.0, world)


FAULTS: Mapping[str, Callable[[float, World], Fault]] = {
    "none": slow_forward,
    "slow_loader": slow_loader,
    "delayed_all_reduce": delayed_all_reduce,
    "slow_rank": slow_rank,
}

BOUND_BY = {
    "none": "compute",
    "slow_loader": "input",
    "delayed_all_reduce": "communication",
    "slow_rank": "synchronization",
}
"""Fault -> the correct verdict."""


def make_training(world: World) -> Training:
    """Return a training of the small network with ten images per rank."""
    arguments = argparse.Namespace(network="small_cnn", image_size=_IMAGE_SIZE, batch_size=_BATCH_OF_ONE * world.size)
    settings = replace(settings_for(arguments), simulated_workers=world.size, crop_padding=1)
    pixels = np.random.default_rng(0).integers(0, 256, (_IMAGES, _IMAGE_SIZE, _IMAGE_SIZE, 3), dtype=np.uint8)
    return Training(
        settings=settings,
        images=load_images(pixels, settings, training=True, device=world.device),
        labels=torch.arange(_IMAGES, device=world.device) % N_CLASSES,
        train_mask=np.ones(_IMAGES, dtype=np.bool_),
        world=world,
        micro_batch="auto",
    )


def diagnose_fault(fault: str, strength: float, world: World, *, seconds: float) -> Diagnosis:
    """Diagnose a training in which `fault` costs `strength` seconds per step; measure for about `seconds`."""
    with slow_forward(_COMPUTE_S, world), FAULTS[fault](strength, world):
        return diagnose(measure(make_training(world), seconds=seconds))


def _row(result: Mapping[str, Any]) -> Row:
    shares = {
        name: "{} ({} to {})".format(*(round(100 * share[key]) for key in ("median", "low", "high")))
        for name, share in result["shares"].items()
    }
    return {
        "bottleneck": result["bottleneck"],
        "strength_s": result["strength"],
        "step_s": round(result["step"]["median"], 3),
        **{f"{name}_%": shares[name] for name in ("compute", "input", "synchronization", "communication")},
        "verdict": " or ".join(result["candidates"]),
        "right": BOUND_BY[result["bottleneck"]],
    }


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--bottlenecks", nargs="+", choices=[*FAULTS], default=[*FAULTS])
    parser.add_argument(
        "--strengths", nargs="+", type=float, default=[0.15, 0.45], help="seconds that a bottleneck costs per step"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per measurement")
    parser.add_argument("--ranks", type=int, default=2, help="processes on this machine")
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)  # output file of the ranks
    arguments = parser.parse_args(argv)
    if arguments.ranks < 2:
        parser.error(f"--ranks {arguments.ranks}: a single rank waits for no network and no other rank; give 2 or more")
    return arguments


def main() -> int:
    """Print the table and one line of JSON."""
    argv = sys.argv[1:]
    arguments = _arguments(argv)
    if distributed.launched_by_torchrun():
        with distributed.join_process_group(threads_per_worker=1) as world:
            results = [
                {
                    "bottleneck": fault,
                    "strength": strength,
                    **asdict(diagnose_fault(fault, strength, world, seconds=arguments.seconds)),
                }
                for fault in arguments.bottlenecks
                for strength in (arguments.strengths if fault != "none" else [0.0])
            ]
            if world.is_main:
                write_json(arguments.results, results)
        return 0
    with TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        code = distributed.launch("benchmarks.injected_bottlenecks", [*argv, f"--results={path}"], arguments.ranks)
        if code:
            return code
        rows = [_row(result) for result in read_json(path)]
    del arguments.results
    print_results(arguments, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
