"""The step that asks whether images of four channels in half precision would be faster than three in float32.

Both loops normalize uint8 images of a fixed batch and take a bare step. See docs/decisions/padded-images.md.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu_day import timing
from benchmarks.gpu_day.running import Cases, Row
from benchmarks.gpu_day.timing import TimingPlan, settings_of, torchvision_network
from benchmarks.loop_speed import steps_on
from pipeline import distributed
from pipeline.datasets.resident import Normalization
from pipeline.distributed import float32_arithmetic
from pipeline.training.settings import TrainSettings

_CHANNELS = 4


def padding(*, dry_run: bool) -> Cases:
    """Return cases for both stems of ResNet-18 at two batch sizes."""
    points = [(stem, size, batch) for stem, size in (("imagenet", 28), ("cifar", 32)) for batch in (4096, 256)]
    plan = timing.REAL
    if dry_run:
        points, plan = [("imagenet", 8, 8)], timing.TINY
    precision = "fp32" if dry_run else "bf16"
    return {
        f"{stem}, batch {batch}": partial(
            compare_with_padded, settings_of("resnet18", size, batch, stem=stem, precision=precision), plan
        )
        for stem, size, batch in points
    }


def compare_with_padded(settings: TrainSettings, plan: TimingPlan) -> Row:
    """Compare a bare step on normalized images of three and of four channels; the ratio is padded over plain."""
    with distributed.join_process_group("auto") as world:
        size, exact = settings.format.crop_size, partial(float32_arithmetic, tf32=False)
        plain, padded = torchvision_network(settings), torchvision_network(settings)
        conv = padded.conv1
        assert isinstance(conv, nn.Conv2d), type(conv)
        padded.conv1 = _PaddedConv2d(conv)
        normalize = Normalization((0.5,) * 3, (0.25,) * 3, width=size, device=world.device)
        loops = {
            "plain": _steps(plain, settings, world.device, 3, normalize),
            "padded": _steps(padded, settings, world.device, _CHANNELS, _to_half(settings, world.device)),
        }
        timed = {name: timing.timed(run, exact) for name, run in loops.items()}
        return timing.in_turn(timed, settings.batch_size, plan, over="plain")


class _PaddedConv2d(nn.Module):
    """A convolution whose weights get a channel of zeros in each pass; the parameters stay those of three channels."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, images: Tensor) -> Tensor:
        """(N, 4, H, W) -> (N, out, H', W')."""
        weight = F.pad(self.conv.weight, (0, 0, 0, 0, 0, 1))
        maps: Tensor = self.conv._conv_forward(images, weight, None)
        return maps


def _to_half(settings: TrainSettings, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return a function that normalizes uint8 (B, H, W, 4) and casts in one operation, to (B, 4, H, W)."""
    width = settings.format.crop_size
    scale = torch.tensor([4 / 255, 4 / 255, 4 / 255, 0.0], device=device).repeat(width)
    shift = torch.tensor([-2.0, -2.0, -2.0, 0.0], device=device).repeat(width)
    dtype = torch.bfloat16 if settings.precision == "bf16" else torch.float32

    def normalize(pixels: Tensor) -> Tensor:
        rows = pixels.flatten(2)
        out = torch.empty(rows.shape, dtype=dtype, device=device)
        return torch.addcmul(shift, rows, scale, out=out).view(pixels.shape).permute(0, 3, 1, 2)

    return normalize


def _steps(
    model: nn.Module,
    settings: TrainSettings,
    device: torch.device,
    channels: int,
    normalize: Callable[[Tensor], Tensor],
) -> Callable[[int], None]:
    side = settings.format.crop_size
    pixels = torch.zeros((settings.batch_size, side, side, channels), dtype=torch.uint8, device=device)
    return steps_on(model, lambda: normalize(pixels), settings, device)
