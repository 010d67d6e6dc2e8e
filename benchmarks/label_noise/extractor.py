"""Phase (a): from labels to a trained network, its features, probabilities and map, each in a file.

What is there already is not made again, and training goes on from its last checkpoint.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.label_noise.cases import Images
from benchmarks.label_noise.mapping import write_map
from benchmarks.label_noise.own_process import in_own_process
from benchmarks.measuring import seconds_of
from pipeline.artifacts.arrays import create_array, write_array
from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.prepared import PreparedData
from pipeline.config.duration import Duration
from pipeline.config.params import Params
from pipeline.distributed import Ranks
from pipeline.errors import InputError
from pipeline.features.extract import extract_features
from pipeline.models import feature_dimension
from pipeline.reduction.checks import check_settings
from pipeline.run_log import RunLog
from pipeline.training.evaluate import evaluate
from pipeline.training.images import load_images
from pipeline.training.initial_weights import IMAGENET_MEAN, IMAGENET_STD, initialiser
from pipeline.training.interruptions import Pauses, end_and_due, make_pauses
from pipeline.training.loop import TrainedRun, train
from pipeline.training.settings import TrainSettings, effective_settings
from pipeline.training.weights import TrainedNetwork, load_trained, save_trained


@dataclass(frozen=True, kw_only=True)
class Extractor:
    """Trains on labels (N,) of the same images, always for as many steps.

    Attributes:
        settings: of every network, with the number of steps that was planned.
    """

    params: Params
    data: PreparedData
    images: Images
    ranks: Ranks
    log: RunLog
    settings: TrainSettings

    def network(self, folder: Path, labels: NDArray[np.int64], settings: TrainSettings) -> TrainedNetwork:
        """Trained on `labels`, or loaded; its weights and its costs are in `folder`."""
        weights, config = folder / "network.pt", self.params.finetune
        if not weights.exists():
            pauses = make_pauses(config.checkpoint, folder / "checkpoints", end_and_due(), self.ranks)
            with pauses.watching():
                run = self._train(labels, settings, title=folder.name, pauses=pauses)
            if run.diverged:
                raise InputError(f"finetune.learning_rate: {config.learning_rate} makes the loss infinite; lower it")
            save_trained(weights, run.model, settings, self.images.class_names)
            pauses.finished()
        return load_trained(weights, self.ranks.device)

    def embed(self, folder: Path, network: TrainedNetwork) -> None:
        """features.npy, float32 (N, D), and probabilities.npy, float32 (N, K).

        The network has seen these images with these labels: its probabilities are in-sample.
        """
        n, batch_size = len(self.images.truth), self.params.extract.batch_size
        with (
            create_array(folder / "features.npy", (n, feature_dimension(network.network)), np.float32) as features,
            self.log.progress(f"{folder.name}: features", n, "images") as progress,
        ):
            extract_features(
                network, self.images.pixels, features, batch_size=batch_size, ranks=self.ranks, progress=progress
            )
        # The place for probabilities of networks that have not seen the image, fold by fold.
        write_array(folder / "probabilities.npy", _probabilities(network, folder / "features.npy", self.ranks.device))

    def test_top1(self, network: TrainedNetwork) -> float:
        """Share, 0 to 1, of the test images, whose labels are the data's own."""
        test = load_images(self.data.test.source, self.settings, training=False, device=self.ranks.device)
        labels = torch.from_numpy(self.data.test.labels).to(self.ranks.device)
        batch_size = self.params.finetune.eval_batch_size
        return evaluate(network.model, test, labels, batch_size=batch_size, ranks=self.ranks).top1

    def seconds(self, steps: int) -> float:
        """Of a run of so many steps, to learn how fast it is; its result goes nowhere."""
        short = replace(self.settings, steps=steps, warmup_steps=0)
        return seconds_of(
            lambda: self._train(self.images.truth, short, title="speed", pauses=None, log=RunLog.silent())
        )

    def with_steps(self, steps: int) -> "Extractor":
        """Cosine over so many steps, after a tenth of warm-up, whatever params.yaml has for its own budget."""
        return replace(self, settings=replace(self.settings, steps=steps, warmup_steps=steps // 10))

    def _train(
        self,
        labels: NDArray[np.int64],
        settings: TrainSettings,
        *,
        title: str,
        pauses: Pauses | None,
        log: RunLog | None = None,
    ) -> TrainedRun:
        config, device = self.params.finetune, self.ranks.device
        return train(
            settings,
            load_images(self.images.pixels, settings, training=True, device=device),
            torch.from_numpy(labels).to(device),
            np.ones(len(labels), dtype=np.bool_),
            ranks=self.ranks,
            log=log or self.log,
            title=title,
            initialise=initialiser(config.weights, settings.network),
            micro_batch=config.micro_batch,
            pauses=pauses,
        )


def make_extractor(params: Params, data: PreparedData, images: Images, ranks: Ranks, log: RunLog) -> Extractor:
    """By the sections `finetune`, `extract` and `reduce`; of one step as yet.

    Raises:
        InputError: too few images for a batch, for the principal components or for the perplexity.
    """
    config, network, n = params.finetune, params.networks[0], len(images.truth)
    if config.batch_size > n:
        raise InputError(f"finetune.batch_size: {config.batch_size} is more than the {n} images; give more --images")
    check_settings(
        n,
        feature_dimension(network),
        n_components=params.reduce.pca.n_components,
        perplexity=params.reduce.tsne.perplexity,
        neighbors=params.reduce.neighbors,
    )
    as_imagenet = config.normalisation == "imagenet"
    settings = effective_settings(
        config,
        network=network,
        n_classes=len(images.class_names),
        n_epoch=n,
        image_size=data.image_size,
        mean=IMAGENET_MEAN if as_imagenet else data.mean,
        std=IMAGENET_STD if as_imagenet else data.std,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        budget=Duration(steps=1),
        seed=config.seed,
        skipped=True,
    )
    cosine = replace(settings, schedule="cosine", schedule_options={}, warmup_steps=0)
    return Extractor(params=params, data=data, images=images, ranks=ranks, log=log, settings=cosine)


def finish_case(
    extractor: Extractor, folder: Path, labels_of: Callable[[], NDArray[np.int64]], about: dict[str, Any]
) -> None:
    """Everything in `folder` that scorers read, unless finished.json says that it is there.

    Args:
        labels_of: gives the labels (N,) to train on.
        about: what else finished.json is to say.
    """
    if (folder / "finished.json").exists():
        return
    labels = labels_of()
    write_array(folder / "labels.npy", labels)
    write_array(folder / "truth.npy", extractor.images.truth)
    network = extractor.network(folder, labels, extractor.settings)
    extractor.embed(folder, network)
    _, cost = in_own_process(
        write_map,
        folder / "features.npy",
        folder / "map.npy",
        extractor.params.reduce,
        imports=[write_map.__module__],
    )
    n, settings = len(labels), extractor.settings
    write_json(
        folder / "finished.json",
        {
            **about,
            "n": n,
            "n_wrong": int((labels != extractor.images.truth).sum()),
            "steps": settings.steps,
            "epochs": settings.steps * settings.batch_size / n,
            "test_top1": extractor.test_top1(network),
            "probabilities": "in-sample",
            "map": dataclasses.asdict(cost),
        },
    )


def reference_probabilities(extractor: Extractor, folder: Path) -> NDArray[np.float32]:
    """(N, K) of a network trained on the true labels for a fifth of the steps; noise by instance follows it."""
    file = folder / "probabilities.npy"
    if not file.exists():
        steps = math.ceil(extractor.settings.steps / 5)
        short = replace(extractor.settings, steps=steps, warmup_steps=steps // 10)
        extractor.embed(folder, extractor.network(folder, extractor.images.truth, short))
    probabilities: NDArray[np.float32] = np.load(file)
    return probabilities


@torch.inference_mode()
def _probabilities(network: TrainedNetwork, features_file: Path, device: torch.device) -> NDArray[np.float32]:
    blocks = np.array_split(np.load(features_file), 64)
    return np.concatenate(
        [
            network.model.classify(torch.from_numpy(block).to(device)).softmax(1).float().cpu().numpy()
            for block in blocks
        ]
    )
