"""A rank of a training into which a bottleneck is put: measures it as `diagnose` does. Started from the tests.

Command line: the file to save to, then pairs of a fault and its seconds.
"""

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from made_up_training import TINY, bright_images
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from pipeline import distributed
from pipeline.artifacts.json_file import write_json
from pipeline.batching import Part
from pipeline.commands.diagnosing import measuring
from pipeline.commands.diagnosing.measuring import Training, measure
from pipeline.costmodel.bottleneck import diagnose
from pipeline.datasets.resident import ResidentImages
from pipeline.distributed import Ranks
from pipeline.training.gradient import GlobalBatch, Objective
from pipeline.training.images import load_images

COMPUTE_S = 0.1
"""Of each pass, on every rank: a busy machine's own noise is small beside it."""


def slow_loader(seconds: float, ranks: Ranks) -> Any:
    """Reading a batch takes longer."""
    read = ResidentImages.training_batch

    def training_batch(images: ResidentImages, ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        time.sleep(seconds)
        return read(images, ids, epochs)

    return patch.object(ResidentImages, "training_batch", training_batch)


def delayed_all_reduce(seconds: float, ranks: Ranks) -> Any:
    """The last bucket's all-reduce takes longer."""
    wrap = distributed.data_parallel

    def delayed(state: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        if bucket.is_last():
            time.sleep(seconds)
        summed = torch.distributed.all_reduce(bucket.buffer().div_(ranks.count), async_op=True).get_future()
        return summed.then(lambda done: done.value()[0])

    def data_parallel(model: nn.Module, device: torch.device, *_: object) -> nn.Module:
        wrapped = wrap(model, device)
        assert isinstance(wrapped, DistributedDataParallel)
        wrapped.register_comm_hook(None, delayed)
        return wrapped

    return patch.object(distributed, "data_parallel", data_parallel)


def slow_passes(seconds: float, ranks: Ranks) -> Any:
    """Forward takes longer."""
    forward = Objective.loss_sum

    def loss_sum(objective: Objective, model: nn.Module, batch: GlobalBatch, part: Part) -> Tensor:
        time.sleep(seconds)
        return forward(objective, model, batch, part)

    return patch.object(Objective, "loss_sum", loss_sum)


def slow_rank(seconds: float, ranks: Ranks) -> Any:
    """The last rank's forward takes longer."""
    return slow_passes(seconds if ranks.rank == ranks.count - 1 else 0.0, ranks)


FAULTS: Mapping[str, Callable[[float, Ranks], Any]] = {
    "slow_loader": slow_loader,
    "delayed_all_reduce": delayed_all_reduce,
    "slow_rank": slow_rank,
    "none": slow_passes,
}


def training_of(ranks: Ranks) -> Training:
    """Ten images a rank through the small network."""
    pixels, labels = bright_images(40)
    settings = replace(TINY, network="small_cnn", batch_size=10 * ranks.count, simulated_workers=ranks.count)
    return Training(
        settings=settings,
        images=load_images(pixels, settings, training=True, device=ranks.device),
        labels=torch.from_numpy(labels),
        members=np.ones(len(labels), dtype=np.bool_),
        ranks=ranks,
        micro_batch="auto",
    )


def main() -> None:
    output, *pairs = sys.argv[1:]
    found: dict[str, Any] = {}
    with distributed.session(threads_per_worker=1) as ranks:
        for fault, seconds in zip(pairs[::2], map(float, pairs[1::2]), strict=True):
            with ExitStack() as stack:
                stack.enter_context(slow_passes(COMPUTE_S, ranks))
                stack.enter_context(FAULTS[fault](seconds, ranks))
                # As few steps as it takes.
                stack.enter_context(patch.object(measuring, "_WARM_UP", 1))
                times = measure(training_of(ranks), seconds=0.1)
            diagnosis = diagnose(times)
            shares = {name: [share.low, share.median, share.high] for name, share in diagnosis.shares.items()}
            found[f"{fault} {seconds:g}"] = {"candidates": list(diagnosis.candidates), "shares": shares}
        if ranks.is_main:
            write_json(Path(output), found)


if __name__ == "__main__":
    main()
