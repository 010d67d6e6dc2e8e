"""The data sets of `prepare.dataset`, by name."""

from collections.abc import Callable
from functools import partial

from pipeline.datasets.builtin import CIFAR10, CIFAR100, open_cifar, open_digits
from pipeline.datasets.image_folder import open_image_folder
from pipeline.datasets.image_set import DatasetOptions, ImageSet

DATASETS: dict[str, Callable[[DatasetOptions], ImageSet]] = {
    "digits": open_digits,
    "cifar10": partial(open_cifar, CIFAR10),
    "cifar100": partial(open_cifar, CIFAR100),
    "image_folder": open_image_folder,
}
