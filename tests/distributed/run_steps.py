"""A rank of a tiny run, started by torchrun from the tests: trains and saves weights and evaluation."""

import sys
from dataclasses import replace

import numpy as np
import torch

from pipeline import distributed
from pipeline.run_log import RunLog
from pipeline.training.evaluate import evaluate
from pipeline.training.loop import load_images, train
from pipeline.training.settings import ImageFormat, TrainSettings

SETTINGS = TrainSettings(
    network="resnet18",
    stem="imagenet",
    n_classes=4,
    format=ImageFormat(image_size=32, crop_size=32, mean=(0.5,) * 3, std=(0.25,) * 3),
    crop_padding=2,
    flip=True,
    batch_size=32,
    simulated_workers=4,
    steps=1,
    optimizer="sgd",
    optimizer_options={"momentum": 0.9, "nesterov": True},
    learning_rate=0.1,
    weight_decay=5e-4,
    decay_norm_and_bias=False,
    schedule="cosine",
    schedule_options={},
    warmup_steps=0,
    label_smoothing=0.1,
    eval_batch_size=7,
    seed=3,
)


def made_up(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images whose class shows in their brightness."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, SETTINGS.n_classes, n)
    images = rng.integers(0, 64, (n, 32, 32, 3)) + 48 * labels[:, None, None, None]
    return images.astype(np.uint8), labels


def main() -> None:
    output, steps, batch_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    settings = replace(SETTINGS, steps=steps, batch_size=batch_size)
    (images, labels), (test_images, test_labels) = made_up(100, 0), made_up(53, 1)
    with distributed.session(threads_per_worker=1) as ranks:
        run = train(
            settings,
            load_images(images, settings, training=True, device=ranks.device),
            torch.from_numpy(labels),
            np.arange(100) % 10 != 0,
            ranks=ranks,
            log=RunLog.silent(),
            title="test",
        )
        test = load_images(test_images, settings, training=False, device=ranks.device)
        result = evaluate(run.model, test, torch.from_numpy(test_labels), batch_size=7, ranks=ranks)
        if ranks.is_main:
            torch.save(
                {
                    "state": run.model.state_dict(),
                    "loss": run.history[-1].train_loss,
                    "test_loss": result.loss,
                    "correct": torch.from_numpy(result.correct),
                    "ranks": ranks.count,
                },
                output,
            )


if __name__ == "__main__":
    main()
