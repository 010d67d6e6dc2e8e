"""Load images in a network's format and evaluate it: every image once, for any number of processes."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline import distributed
from pipeline.artifacts.prepared import ImageFiles, ImageSource
from pipeline.datasets.augmentation import RandomResizedCrop
from pipeline.datasets.resident import ResidentImages
from pipeline.datasets.sources import TrainingImages, upload
from pipeline.datasets.streaming import StreamingImages
from pipeline.distributed import World
from pipeline.errors import explain_out_of_memory
from pipeline.training.numerics import compile_disabled
from pipeline.training.settings import ImageFormat, TrainSettings


def load_images(
    source: ImageSource, settings: TrainSettings, *, training: bool, device: torch.device
) -> TrainingImages:
    """Load a split's images in the format and with the augmentation of `settings`, on the device or from files.

    Raises:
        OutOfMemory: they do not fit the memory.
    """
    if isinstance(source, ImageFiles):
        crop = RandomResizedCrop(scale=(settings.crop_area, 1.0), flip=settings.flip, seed=settings.seed)
        return _streaming(source, settings.format, crop, device)
    n, height, width, _ = source.shape
    with explain_out_of_memory(
        f"prepare.storage: {n:,} images of {height}x{width} pixels do not fit the memory; give files, a smaller "
        "prepare.image_size or a prepare.train_size"
    ):
        return ResidentImages(
            source,
            mean=settings.format.mean,
            std=settings.format.std,
            crop_size=settings.format.crop_size,
            crop_padding=settings.crop_padding if training else 0,
            flip=settings.flip and training,
            seed=settings.seed,
            device=device,
        )


def evaluation_images(source: ImageSource, image_format: ImageFormat, device: torch.device) -> TrainingImages:
    """Load images for evaluation in a network's format."""
    if isinstance(source, ImageFiles):
        return _streaming(source, image_format, RandomResizedCrop(), device)
    return ResidentImages(
        source, mean=image_format.mean, std=image_format.std, crop_size=image_format.crop_size, device=device
    )


def _streaming(
    files: ImageFiles, image_format: ImageFormat, crop: RandomResizedCrop, device: torch.device
) -> StreamingImages:
    return StreamingImages(
        files,
        mean=image_format.mean,
        std=image_format.std,
        crop_size=image_format.crop_size,
        random_crop=crop,
        # On a CPU, decoding shares the cores with the network; with a GPU it uses them alone.
        workers=distributed.threads_per_process("auto", distributed.local_world_size()),
        device=device,
    )


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        correct: (N,) bool per image.
        loss: mean cross-entropy in nats.
    """

    correct: NDArray[np.bool_]
    loss: float

    @property
    def top1(self) -> float:
        """Fraction of images classified correctly, 0 to 1."""
        return float(self.correct.mean())

    def balanced_accuracy(self, labels: NDArray[np.int64]) -> float:
        """Return the mean over classes of the fraction classified correctly, 0 to 1."""
        return float(np.mean([self.correct[labels == label].mean() for label in np.unique(labels)]))


def rank_rows(n: int, world: World) -> NDArray[np.int64]:
    """Return this rank's contiguous share of `n` rows, without padding; sizes differ by one at most."""
    return np.arange(n * world.rank // world.size, n * (world.rank + 1) // world.size)


@torch.inference_mode()
def evaluate(model: nn.Module, images: TrainingImages, labels: Tensor, *, batch_size: int, world: World) -> Evaluation:
    """Classify all images in single precision; each rank takes its share and all ranks return the full result.

    The batches are the same for every number of ranks, each whole on one rank, and so are the bits of the result.

    Args:
        labels: (N,) int64 on the device.
        batch_size: images per forward pass.

    Raises:
        OutOfMemory: a pass does not fit the memory.
    """
    model.eval()
    correct = torch.zeros(len(images), dtype=torch.int32, device=labels.device)
    seen = torch.zeros_like(correct)
    all_rows = np.arange(len(images))
    batches = [all_rows[start : start + batch_size] for start in range(0, len(images), batch_size)]
    own_batches = rank_rows(len(batches), world)
    losses = torch.zeros(len(batches), dtype=torch.float64, device=labels.device)
    single_precision = distributed.float32_arithmetic(tf32=False)
    too_many = f"eval_batch_size: a pass of {batch_size} images does not fit the memory; lower it"
    with (
        explain_out_of_memory(too_many),
        single_precision,
        compile_disabled(),
        images.prefetch((batches[index], None) for index in own_batches),
    ):
        for index in own_batches:
            sample_ids = batches[index]
            rows_on_device = upload(sample_ids, labels.device)
            logits = model(images.evaluation_batch(sample_ids))
            correct[rows_on_device] = (logits.argmax(1) == labels[rows_on_device]).int()
            seen[rows_on_device] += 1
            losses[index] = F.cross_entropy(logits, labels[rows_on_device], reduction="sum").double()
    for tensor in (correct, seen, losses):
        distributed.all_reduce_sum_(tensor)
    assert bool((seen == 1).all()), "an image was evaluated twice or not at all"
    return Evaluation(correct=correct.cpu().numpy().astype(np.bool_), loss=sum(losses.tolist()) / len(images))
