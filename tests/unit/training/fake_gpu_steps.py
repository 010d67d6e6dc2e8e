"""Run training steps and an evaluation on a made-up GPU: `fake_gpu_steps.py NETWORK STEM PRECISION WORKERS ...`.

Torch's fake tensors have a device, a shape and a type, and no values. An operator whose tensors are on two devices
raises, and so does one that reads a value. The autograd engine asks the driver for the GPU, so gradients are zeros
here; `benchmarks.step_operations` takes whole steps on torch's `meta` device. It is a program of its own, since it
replaces parts of torch.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.gpu_day.timing import settings_of
from benchmarks.loop_speed import random_images
from benchmarks.step_operations import _plain_sgd
from pipeline.batching import GlobalBatch, RankBatch, SampleStream, merge_micro_batches, split_groups, worker_slices
from pipeline.distributed import World
from pipeline.models.layers import has_dropout
from pipeline.run_log import RunLog
from pipeline.training.eval_weights import recompute_batch_norm_statistics
from pipeline.training.evaluation import load_images
from pipeline.training.gradients import TrainLoss, slice_gradients
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings
from pipeline.training.state import start_state
from pipeline.training.step import TrainStep

_DEVICE = torch.device("cuda", 0)


@contextmanager
def made_up_gpu(parameters: list[nn.Parameter]) -> Iterator[Counter[str]]:
    """Inside the context, tensors may be on `cuda:0`; yields how many arrays were pinned.

    Args:
        parameters: get a gradient of zeros in each backward pass.
    """
    pinned: Counter[str] = Counter()

    def backward(loss: Tensor) -> None:
        assert (loss.device, loss.ndim) == (_DEVICE, 0)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)

    def gradients(loss: Tensor, wanted: list[Tensor]) -> list[Tensor]:
        assert (loss.device, loss.ndim) == (_DEVICE, 0)
        return [torch.zeros_like(parameter) for parameter in wanted]

    def pin(tensor: Tensor, *_: Any) -> Tensor:
        pinned["arrays"] += 1
        return tensor

    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(patch.object(Tensor, "pin_memory", pin))
        stack.enter_context(patch.object(nn.Module, "to", _move))
        stack.enter_context(patch.object(Tensor, "backward", backward))
        stack.enter_context(patch("torch.autograd.grad", gradients))
        stack.enter_context(patch("torch.cuda.amp.common.amp_definitely_not_available", return_value=False))
        stack.enter_context(patch("torch.cuda.is_bf16_supported", return_value=True))
        stack.enter_context(patch("pipeline.training.state.OPTIMIZERS", {"sgd": _plain_sgd}))
        yield pinned


def _move(model: nn.Module, *arguments: Any, **options: Any) -> nn.Module:
    """Stand in for `Module.to`, which exchanges the parts of tensors: fake ones have weak references to them."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            kept = options if parameter.ndim == 4 else {}  # channels_last is of images and filters
            setattr(module, name, nn.Parameter(parameter.detach().to(*arguments, **kept)))
        for name, buffer in module.named_buffers(recurse=False):
            module.register_buffer(name, buffer.to(*arguments) if arguments else buffer)
    return model


def run(settings: TrainSettings) -> dict[str, Any]:
    """Take two steps, the gradients of slices, and the statistics of BatchNorm; return what was seen."""
    size = settings.batch_size
    pixels, labels = random_images(4 * size, settings.format.image_size)
    world = World(rank=0, size=1, device=_DEVICE)
    parameters: list[nn.Parameter] = []
    with made_up_gpu(parameters) as pinned:
        images = load_images(pixels, settings, training=True, device=_DEVICE)
        state = start_state(settings, world, n_tracked_samples=4 * size, n_tracked_epochs=2)
        parameters += state.model.parameters()
        train_loss = TrainLoss(
            images=images, labels=torch.from_numpy(labels).to(_DEVICE), label_smoothing=settings.label_smoothing,
            precision=settings.precision, seed=settings.seed, has_dropout=has_dropout(state.model),
        )  # fmt: skip
        parts = worker_slices(size, settings.simulated_workers, settings.bn_group)
        rank_batch = RankBatch(
            slices=[group for part in parts for group in split_groups(part)],
            micro_batches=merge_micro_batches(parts, max(size // 2, parts[0].group_sizes[0])),
        )
        stream = SampleStream(np.ones(4 * size, dtype=np.bool_), settings.seed)
        # The third batch spans two epochs.
        batches = [GlobalBatch.from_stream(stream, start=start, size=size) for start in (0, size, 4 * size - 2)]
        step = TrainStep(
            settings, state, train_loss, batches={size: rank_batch}, track_from_step=0, world=world,
            options=RunOptions(graph_capture=None), log=RunLog.silent(),
        )  # fmt: skip
        step.warm_up(batches[0])
        for batch in batches:
            step.run_step(batch)
        slice_gradients(state.model, train_loss, batches[0], rank_batch.slices)
        with patch("pipeline.training.eval_weights.int", return_value=2, create=True):
            recompute_batch_norm_statistics(state.model, train_loss, batches[:1], rank_batch.micro_batches)
        state.model.eval()
        with torch.inference_mode():
            logits = state.model(images.evaluation_batch(np.arange(size)))
        devices = {tensor.device for tensor in (*state.model.parameters(), *state.model.buffers(), logits)}
        devices |= {value.device for values in state.optimizer.state.values() for value in values.values()}
    return {"devices": sorted(map(str, devices)), "pinned": pinned["arrays"], "logits": str(logits.dtype)}


def main() -> None:
    """Print a line of JSON for each NETWORK STEM PRECISION WORKERS."""
    arguments = sys.argv[1:]
    for start in range(0, len(arguments), 4):
        network, stem, precision, workers = arguments[start : start + 4]
        settings = settings_of(
            network, 32, 16, stem=stem, precision=precision, simulated_workers=int(workers), steps=100, clip_norm=1.0,
            label_smoothing=0.1,
        )  # fmt: skip
        print(json.dumps(run(replace(settings, bn_group=4 if int(workers) == 1 else None))), flush=True)


if __name__ == "__main__":
    main()
