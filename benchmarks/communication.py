"""Ways to exchange gradients: how fast each trains, how it scales, and what a network knows after as many steps.

The project's own trainer on scikit-learn's digits, with a network of much arithmetic for its parameters (ResNet-50) and
one of little (VGG-16). On one process nothing is exchanged; against its images/s:

* weak: as many images for each process, so the batch grows with them; 1 is perfect.
* strong: the batch of one process, shared; 1 is perfect.

`kept` is the time of a step without exchange over that of a whole one, at the larger batch. Starts its ranks itself; on
CPUs every one should have a core of its own. Compression between nodes needs nodes, so it is not in here.

    python -m benchmarks.communication --ranks 1 2
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor
from torchvision.models import vgg16

from benchmarks.loop_speed import settings_for
from benchmarks.measuring import print_results
from benchmarks.printing import Row
from pipeline import distributed
from pipeline.artifacts.json_file import read_json, write_json
from pipeline.commands.diagnosing.measuring import Training, step_seconds, without_exchange
from pipeline.datasets.images import resize
from pipeline.distributed import Ranks, Transport
from pipeline.models.network import Network
from pipeline.run_log import RunLog
from pipeline.training import state
from pipeline.training.evaluate import evaluate
from pipeline.training.images import evaluation_images, load_images
from pipeline.training.loop import train
from pipeline.training.settings import TrainSettings

_AFTER = Transport(overlap=False)


@dataclass(frozen=True, kw_only=True)
class Way:
    """What differs of a run's settings, and how its gradients travel."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    transport: Transport | None = None


def ways(steps: int) -> Mapping[str, Way]:
    """By name; `steps` are those of the run whose accuracy is measured."""
    buckets = {f"buckets of {mib} MiB": Way(transport=Transport(bucket_mib=mib)) for mib in (1, 5, 25, 100)}
    return {
        **buckets,
        "one message": Way(transport=_AFTER),
        "by node": Way(transport=Transport(hierarchical=True)),
        "bf16": Way(settings={"compression": "bf16"}),
        "fp16": Way(settings={"compression": "fp16"}),
        "powersgd": Way(settings={"compression": "powersgd", "powersgd_rank": 4}, transport=_AFTER),
        "post-local SGD": Way(settings={"local_from_step": steps // 2, "local_period": 8}),
        "tree": Way(settings={"reduction": "tree"}),
    }


_ALONE = "buckets of 25 MiB"
"""What one process is asked for, which exchanges nothing."""


class Vgg16(Network):
    """torchvision's, in the parts that the project's networks have."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.backbone = vgg16(weights=None, num_classes=n_classes)

    def features(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, 4096)."""
        x = self.backbone.avgpool(self.backbone.features(images)).flatten(1)
        features: Tensor = self.backbone.classifier[:-1](x)
        return features

    def classify(self, features: Tensor) -> Tensor:
        """(N, 4096) -> (N, n_classes) logits."""
        logits: Tensor = self.backbone.classifier[-1](features)
        return logits


def _builds(network: str) -> AbstractContextManager[object]:
    """While active the trainer builds networks of this name, also where no study can ask for them."""
    if network != "vgg16":
        return nullcontext()

    def build(_: str, n_classes: int, *, stem: str, seed: int) -> Network:  # noqa: ARG001 - as the trainer calls it
        torch.manual_seed(seed)
        return Vgg16(n_classes)

    return patch.object(state, "build", build)


class Digits:
    """scikit-learn's, enlarged; every fifth is held out."""

    def __init__(self, image_size: int, device: torch.device) -> None:
        bunch = load_digits()
        pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
        images = np.stack([resize(Image.fromarray(one).convert("RGB"), image_size) for one in pixels])
        held_out = np.arange(len(images)) % 5 == 0
        self.train, self.test = images[~held_out], images[held_out]
        self.train_labels = torch.from_numpy(bunch.target[~held_out]).to(device)
        self.test_labels = torch.from_numpy(bunch.target[held_out]).to(device)


def _training(settings: TrainSettings, way: Way, digits: Digits, ranks: Ranks) -> Training:
    return Training(
        settings=settings,
        images=load_images(digits.train, settings, training=True, device=ranks.device),
        labels=digits.train_labels,
        members=np.ones(len(digits.train), dtype=np.bool_),
        ranks=ranks,
        micro_batch="auto",
        transport=way.transport,
    )


def _seconds(training: Training, arguments: argparse.Namespace) -> float:
    """Median of a step, of the slowest rank."""
    # Of post-local SGD the local steps: those before are the default's, and the averages come on top, one in eight.
    local = training.settings.local_from_step is not None
    timed = replace(training, settings=replace(training.settings, local_from_step=0)) if local else training
    own = [float(np.median(step_seconds(timed, arguments.timed_steps))) for _ in range(arguments.rounds)]
    return max(distributed.all_gather(float(np.median(own))))


def _top1(training: Training, digits: Digits) -> float:
    """Of the images held out, after the steps of the settings; 0 to 1."""
    ranks, settings = training.ranks, training.settings
    run = train(
        settings, training.images, training.labels, training.members,
        ranks=ranks, log=RunLog.silent(), title="", micro_batch="auto", transport=training.transport,
    )  # fmt: skip
    test = evaluation_images(digits.test, settings.format, ranks.device)
    return evaluate(run.model, test, digits.test_labels, batch_size=256, ranks=ranks).top1


def measured(network: str, arguments: argparse.Namespace, digits: Digits, ranks: Ranks) -> list[dict[str, Any]]:
    """Seconds of a step at both batches and accuracy, for each way that these ranks can go."""
    chosen = argparse.Namespace(**{**vars(arguments), "network": network})
    plain = replace(settings_for(chosen), simulated_workers=ranks.count, flip=False, steps=arguments.steps)
    found = []
    for name in arguments.ways if ranks.count > 1 else [_ALONE]:
        way = ways(arguments.steps)[name]
        settings = replace(plain, **way.settings)
        large = _training(replace(settings, batch_size=ranks.count * arguments.batch_size), way, digits, ranks)
        with _builds(network):
            weak = _seconds(large, arguments)
            shared = weak
            alone = weak
            if ranks.count > 1:
                shared = _seconds(replace(large, settings=settings), arguments)
                alone = _seconds(without_exchange(large), arguments)
            top1 = _top1(large, digits)
        found.append({
            "network": network, "ranks": ranks.count, "way": name, "weak": weak, "strong": shared, "alone": alone,
            "top1": top1,
        })  # fmt: skip
    return found


def rows_of(found: Sequence[Mapping[str, Any]], batch_size: int) -> list[Row]:
    """The table; scaling is empty where one process was not measured."""
    bases = {one["network"]: one["weak"] for one in found if one["ranks"] == 1}
    rows: list[Row] = []
    for one in found:
        base = bases.get(one["network"])
        rows.append({
            "network": one["network"],
            "ranks": one["ranks"],
            "way": one["way"] if one["ranks"] > 1 else "alone",
            "images_per_s": round(one["ranks"] * batch_size / one["weak"], 1),
            "weak": f"{base / one['weak']:.3f}" if base else "",
            "strong": f"{base / one['ranks'] / one['strong']:.3f}" if base else "",
            "kept": f"{one['alone'] / one['weak']:.3f}",
            "top1": round(one["top1"], 4),
        })  # fmt: skip
    return rows


def _arguments() -> argparse.Namespace:
    gpus = torch.cuda.device_count()
    counts = [count for count in (1, 2, 4, 8, 16) if count <= gpus] or [1, 2]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--networks", nargs="+", default=["resnet50", "vgg16"])
    parser.add_argument("--ways", nargs="+", choices=[*ways(1)], default=[*ways(1)])
    parser.add_argument("--ranks", nargs="+", type=int, default=counts, help="processes on this machine")
    parser.add_argument("--batch-size", type=int, default=32, help="of one process; shared for strong scaling")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10, help="of the run whose accuracy is measured")
    parser.add_argument("--timed-steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)  # where the ranks leave what they measured
    return parser.parse_args()


def main() -> int:
    """Print the table and one line of JSON."""
    arguments = _arguments()
    if distributed.launched():
        with distributed.session("auto") as ranks:
            digits = Digits(arguments.image_size, ranks.device)
            found = [row for network in arguments.networks for row in measured(network, arguments, digits, ranks)]
            if ranks.is_main:
                write_json(arguments.found, found)
        return 0
    everything: list[Any] = []
    with TemporaryDirectory() as folder:
        for count in arguments.ranks:
            path = Path(folder) / f"{count}.json"
            code = distributed.launch("benchmarks.communication", [*sys.argv[1:], f"--found={path}"], count)
            if code:
                return code
            everything += read_json(path)
    del arguments.found
    everything.sort(key=lambda one: arguments.networks.index(one["network"]))
    print_results(arguments, rows_of(everything, arguments.batch_size))
    return 0


if __name__ == "__main__":
    sys.exit(main())
