"""The numbers that two papers state in their texts, figure by figure, and what they leave unspecified.

No value is read off a curve. A figure whose text gives no number has no point here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config.recipe import ModelName
from pipeline.config.study import Arm, PaperFigure

KEPT_SHARES = {
    "resnet152": 0.9876,
    "resnet101": 0.9487,
    "resnet50": 0.9266,
    "resnet34": 0.9345,
    "resnet18": 0.9379,
}
"""Extractor -> share of CIFAR-10's 50,000 training images that its filter keeps: table I of Gahlot et al. (2020)."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """An accuracy that a paper's text states.

    Attributes:
        place: the section that states it.
        weight_decays: those that the text names for it; two if sections of the text disagree.
        top1: 0 to 1.
    """

    place: str
    model: ModelName
    arm: Arm
    batch_size: int
    weight_decays: tuple[float, ...]
    top1: float


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published figure or table.

    Attributes:
        source: authors, year, and number of the figure or table.
        data: the data set of its accuracies.
        statement: what the text says about it in addition to the points.
        points: empty if no accuracy is published as a number.
        left_open: choices that the text does not name, or names in two ways; one line each.
    """

    source: str
    data: str
    statement: str
    points: tuple[Point, ...] = ()
    left_open: tuple[str, ...]


_GAHLOT, _MCCORD = "Gahlot, Yin and Shankar (2020)", "McCord and Dash (2021)"

BEST_WARMUPS = {7680: 5.0, 30720: 10.0}
"""Batch size -> best warm-up (epochs) of ResNet-50 on ImageNet: text of figs. 6 and 7 of McCord and Dash (2021)."""
BEST_WARMUPS_SOURCE = f"{_MCCORD}, ResNet-50 on ImageNet"

CIFAR10 = "CIFAR-10's 50,000 training images, cut to 28 × 28 pixels"
"""Data of table I and of all accuracies of Gahlot et al. (2020)."""
_IMAGENET = "ImageNet"

_TRAINING = (
    "learning rate, its schedule and warm-up; momentum of SGD",
    "augmentation beyond the size of 28 × 28: how images are cropped, whether they are flipped",
    "first layer of the network: ImageNet's or CIFAR's",
    "whether the weights start at random or pretrained",
)
_FILTER = (
    'settings of PCA, t-SNE and DBSCAN ("default values" of libraries that are not named)',
    "whether the extractor was pretrained (fig. 1) or trained from scratch (section III-B1)",
)
_ARMS = (
    "whether the random subset matches the filter's count of each class, and how often it was sampled",
    "whether the arms had equal epochs or equal steps",
    "number of filter replicates: all runs may share one filter",
)


def _fig6(arm: Arm, batch_size: int, weight_decay: float, top1: float) -> Point:
    return Point(
        place="section IV-B1", model="resnet18", arm=arm, batch_size=batch_size,
        weight_decays=(weight_decay,), top1=top1,
    )  # fmt: skip


def _fig7(arm: Arm, batch_size: int, top1: float) -> Point:
    # Section IV-B says 0.01 for large batches, section IV-B1 0.005.
    return Point(
        place="section IV-B2", model="resnet18", arm=arm, batch_size=batch_size, weight_decays=(0.005, 0.01), top1=top1
    )


_MCCORD_OPEN = (
    "the batch size that the base rate of 0.0125 is for; 32 gives the 0.1 for 256 of Goyal et al. (2017)",
    "momentum, weight decay, and what they act on",
    "augmentation, and size of the images",
    "where the warm-up starts: at 0 or at the base rate",
    "number of runs per curve",
)

PUBLISHED: Mapping[PaperFigure, Published] = {
    "gahlot-2020-table1": Published(
        source=f"{_GAHLOT}, table I",
        data=CIFAR10,
        statement="The table states how many images each extractor's filter keeps (see Images kept); it does "
        "not state the accuracy of networks trained on the five sets.",
        left_open=(*_FILTER, *_TRAINING),
    ),
    "gahlot-2020-fig4": Published(
        source=f"{_GAHLOT}, fig. 4",
        data=CIFAR10,
        statement="At each learning rate some batch size reaches the highest accuracy (section IV-A).",
        left_open=("which learning rates", "weight decay", *_TRAINING),
    ),
    "gahlot-2020-fig5": Published(
        source=f"{_GAHLOT}, fig. 5",
        data=CIFAR10,
        statement="Accuracy rises up to a batch size and falls beyond it; the networks' curves peak together at low "
        "learning rates and part at high ones, and fall suddenly for large networks (section IV-A).",
        left_open=(
            "which learning rates",
            "which batch sizes between 16 and 20,480",
            "weight decay",
            "whether BatchNorm uses the statistics of each GPU, 2 images at batch 16",
            *_TRAINING,
        ),
    ),
    "gahlot-2020-fig6": Published(
        source=f"{_GAHLOT}, fig. 6",
        data=CIFAR10,
        statement="Filtered is always above random, and best at the smallest weight decay (section IV-B1). Each "
        "accuracy is stated at the weight decay that was best for its arm, so arms differ in it.",
        points=(
            _fig6("filtered", 64, 0.005, 0.818),
            _fig6("random", 64, 0.012, 0.792),
            _fig6("filtered", 128, 0.005, 0.827),
            _fig6("random", 128, 0.005, 0.805),
            _fig6("filtered", 256, 0.005, 0.832),
            _fig6("full", 256, 0.012, 0.826),
            _fig6("random", 256, 0.0135, 0.809),
        ),
        left_open=('number of runs ("multiple")', "number of GPUs", *_ARMS, *_FILTER, *_TRAINING),
    ),
    "gahlot-2020-fig7": Published(
        source=f"{_GAHLOT}, fig. 7",
        data=CIFAR10,
        statement="Means of 4 runs: filtered is above full from batch 6,272 to 10,368 and within its error bars "
        "below 6,000, and above random at every size (section IV-B2).",
        points=(_fig7("filtered", 6272, 0.775), _fig7("full", 6272, 0.752)),
        left_open=(
            "weight decay: 0.01 in section IV-B, 0.005 in section IV-B1",
            "which batch sizes in addition to 6,272 and 10,368",
            *_ARMS,
            *_FILTER,
            *_TRAINING,
        ),
    ),
    "mccord-2021-fig5": Published(
        source=f"{_MCCORD}, figs. 4 and 5",
        data=_IMAGENET,
        statement="Validation accuracy falls as the batch grows from 3,840 to 30,720.",
        left_open=_MCCORD_OPEN,
    ),
    "mccord-2021-fig6-7": Published(
        source=f"{_MCCORD}, figs. 6 and 7",
        data=_IMAGENET,
        statement="The best warm-up is 5 epochs at batch 7,680 and 10 at batch 30,720; no warm-up is the worst.",
        left_open=_MCCORD_OPEN,
    ),
    "mccord-2021-fig8": Published(
        source=f"{_MCCORD}, figs. 8 and 9",
        data=_IMAGENET,
        statement="Linear scaling of the learning rate makes no significant difference at batch 30,720; both runs stay "
        "below a top-1 of 75.3 %.",
        left_open=_MCCORD_OPEN,
    ),
}

NETWORK_FIGURES: Mapping[str, Published] = {
    "map": Published(
        source=f"{_GAHLOT}, fig. 2",
        data=CIFAR10,
        statement="The test images on a t-SNE embedding of ResNet-152's features, which shows that the network "
        "separates the classes (section III-B3).",
        left_open=(
            *_FILTER,
            "whether the test images have a separate embedding or share that of the training images",
        ),
    ),
    "noise": Published(
        source=f"{_GAHLOT}, fig. 3",
        data=CIFAR10,
        statement="DBSCAN's noise in one class, automobile, on the embedding of the training images (section III-B4).",
        left_open=("whose network's embedding it is", *_FILTER),
    ),
}
"""Figures of an extractor and its filter. They state no numbers and cannot be compared with a study."""

THROUGHPUT = Published(
    source=f"{_GAHLOT}, fig. 8",
    data="data that its text does not name",
    statement="Images per second against the number of GPUs: DistributedDataParallel scales better than Horovod, which "
    "falls behind near 1,000 GPUs (section IV-C).",
    left_open=("which ResNet", "images on each GPU", "data set and size of the images"),
)
"""A figure that no stage of the pipeline makes."""
