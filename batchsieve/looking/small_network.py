"""A small network trained on the images themselves, in folds, where there are no pretrained weights."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from batchsieve.looking.networks import ExtractedFeatures
from batchsieve.looking.sources import Pictures
from pipeline.datasets.decode import resize
from pipeline.datasets.splits import assign_folds
from pipeline.datasets.store import channel_statistics
from pipeline.distributed import World
from pipeline.errors import InputError
from pipeline.features.extract import FoldPasses, extract_by_fold
from pipeline.models import feature_dimension
from pipeline.run_log import RunLog
from pipeline.training.evaluation import load_images
from pipeline.training.loop import TrainData, train
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import ImageFormat, TrainSettings
from pipeline.training.weights import FoldNetworks, TrainedNetwork

FOLDS = 5

_SIDE = 32
_PADDING = 3
_BATCH = 64
_EPOCHS, _MIN_STEPS = 9, 200
_LEARNING_RATE = 0.1
_EXTRACTION_BATCH = 256
_MIN_TRAIN = 2  # BatchNorm has no statistics of a single image


class SmallNetwork:
    """`Extractor` by networks trained here: that of fold k sees all images but those of fold k, and predicts these.

    The recipe is that of the ResNet-9 in docs/results/label-noise, its rate scaled to a batch of 64, and no flip, since
    a mirrored image may belong to another class. Nothing was tuned for few images.
    """

    def __init__(self, network: str, world: World, log: RunLog, seed: int) -> None:
        self.description = (
            f"{network} trained on these images at {_SIDE} pixels, in {FOLDS} folds; with few images it contradicts "
            "many right labels, so that the estimate is too high"
        )
        self.name, self._world, self._log, self._seed = network, world, log, seed

    def encode(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return images (B, S, S, 3) at the size of the network's input."""
        return np.stack([resize(Image.fromarray(image), _SIDE) for image in pixels])

    def extract(self, pictures: Pictures) -> ExtractedFeatures:
        """Train a network for each fold, and return what each says of the images that it did not see.

        Raises:
            InputError: there are too few images, or the training diverged.
        """
        pixels: NDArray[np.uint8] = pictures.encoded
        n, n_classes = len(pixels), len(pictures.class_names)
        if n < 2 * FOLDS:
            raise InputError(f"images: {n} are too few to train on in {FOLDS} folds; give {2 * FOLDS} or more")
        folds = assign_folds(pictures.paths, pictures.labels, FOLDS, seed=self._seed, contents=pictures.sha256)
        # Copies of an image are in the same fold, which may leave few images outside it.
        fewest = n - int(np.bincount(folds).max())
        if fewest < _MIN_TRAIN:
            raise InputError(
                f"images: {fewest} of {n} are outside a fold, since the others are copies of one image; remove copies, "
                "or take another network"
            )
        networks = tuple(self._train(pixels, pictures, folds))
        features = np.empty((len(networks), n, feature_dimension(self.name)), dtype=np.float32)
        probabilities = np.empty((n, n_classes), dtype=np.float32)
        with self._log.progress("features", n, "images") as progress:
            extract_by_fold(
                FoldNetworks(networks=networks, folds=folds),
                pixels,
                features,
                probabilities,
                passes=FoldPasses(batch_size=_EXTRACTION_BATCH),
                world=self._world,
                progress=progress,
            )
        return ExtractedFeatures(
            features=features[folds, np.arange(n)], probabilities=probabilities, by_one_network=features[0]
        )

    def _train(
        self, pixels: NDArray[np.uint8], pictures: Pictures, folds: NDArray[np.int32]
    ) -> Iterator[TrainedNetwork]:
        labels = torch.from_numpy(pictures.labels).to(self._world.device)
        names = tuple(map(str, pictures.class_names))
        for fold in range(FOLDS):
            rows = folds != fold
            settings = self._settings(pixels, len(names), int(rows.sum()))
            images = load_images(pixels, settings, training=True, device=self._world.device)
            title = f"train {self.name}, fold {fold + 1} of {FOLDS}"
            run = train(
                settings,
                TrainData(images, labels, rows),
                world=self._world,
                log=self._log,
                options=RunOptions(title=title),
            )
            if run.diverged:
                raise InputError(f"network: the training of {self.name} diverged on these images; take another")
            yield TrainedNetwork(model=run.model.eval(), network=self.name, class_names=names, format=settings.format)

    def _settings(self, pixels: NDArray[np.uint8], n_classes: int, n_train: int) -> TrainSettings:
        mean, std = channel_statistics(pixels)
        batch = min(_BATCH, n_train)
        steps = max(_MIN_STEPS, _EPOCHS * n_train // batch)
        return TrainSettings(
            network=self.name,
            stem="cifar",
            n_classes=n_classes,
            # A channel without variance stays as it is.
            format=ImageFormat(
                image_size=_SIDE, crop_size=_SIDE, mean=tuple(mean), std=tuple(value or 1.0 for value in std)
            ),
            crop_padding=_PADDING,
            flip=False,
            batch_size=batch,
            simulated_workers=1,
            steps=steps,
            optimizer="sgd",
            optimizer_options={"momentum": 0.9, "nesterov": True},
            learning_rate=_LEARNING_RATE,
            weight_decay=5e-4,
            decay_norm_and_bias=False,
            schedule="one_cycle",
            schedule_options={"rise": 0.2, "initial_factor": 0.1},
            warmup_steps=0,
            label_smoothing=0.1,
            seed=self._seed,
        )
