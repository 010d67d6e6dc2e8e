"""From a prepared split to what a training run or an evaluation reads."""

import torch

from pipeline import distributed
from pipeline.artifacts.prepared import ImageFiles, ImageSource
from pipeline.datasets.resident import ResidentImages
from pipeline.datasets.resized_crop import RandomResizedCrop
from pipeline.datasets.streaming import StreamingImages
from pipeline.datasets.training_images import TrainingImages
from pipeline.errors import explaining_out_of_memory
from pipeline.training.settings import ImageFormat, TrainSettings


def load_images(
    source: ImageSource, settings: TrainSettings, *, training: bool, device: torch.device
) -> TrainingImages:
    """A split's images in the format and with the augmentation of `settings`; on the device, or read from files.

    Raises:
        OutOfMemory: they do not fit the memory.
    """
    if isinstance(source, ImageFiles):
        crop = RandomResizedCrop(scale=(settings.crop_area, 1.0), flip=settings.flip, seed=settings.seed)
        return _streaming(source, settings.format, crop, device)
    n, height, width, _ = source.shape
    with explaining_out_of_memory(
        f"prepare.storage: {n:,} images of {height}x{width} pixels do not fit the memory; give files, a smaller "
        "prepare.image_size or a prepare.train_share"
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
    """Images for evaluation in a network's format."""
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
        # Decoding shares the cores with computing on a CPU, and has them alone beside a GPU.
        workers=distributed.threads_for("auto", distributed.ranks_on_this_node()),
        device=device,
    )
