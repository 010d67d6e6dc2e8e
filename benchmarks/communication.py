"""Compare methods of gradient exchange: speed, scaling, and accuracy after equal steps.

Trains by the project's trainer on scikit-learn's digits. ResNet-18 and ResNet-50 have much arithmetic for their
parameters, VGG-16 has little. The reference is the images/s of one process, which exchanges nothing. It is measured
before and after each launch of several processes:

* weak: the batch of one process on each process, so that the global batch grows; 1 is perfect.
* strong: the batch of one process, split over the processes; 1 is perfect.

Within a launch all methods take turns in each round. Two columns are ratios within one round, as the median over rounds
with the extremes:

* kept: the time of a step without exchange over that of a step with it, at the larger batch.
* of_ddp: images/s over those of torch's default buckets of 25 MiB, the first of which has 1 MiB. Every launch measures
  them.

Times are means over steps of the slowest rank. Those of post-local SGD cover whole periods of its local phase, so that
they include its averages. Horovod has a separate launch; its thread also runs during the other methods' steps there.

`top1` is the accuracy on 360 held-out images after `--steps` steps of the batch of one process, for any number of
ranks, as the median of `--seeds` runs with the extremes. BatchNorm normalizes over the images of one rank. Only the
networks of `--learning` have it: after so few steps ResNet-50 has learned little, and VGG-16, which has no BatchNorm,
nothing.

The methods by node run for even numbers of ranks on two emulated nodes: two torchrun agents on this machine, each with
half of the ranks, which meet over the loopback interface. Links between these nodes are as fast as those inside. Hence
the rows show what the second level costs and how compression between nodes changes the accuracy, not what a fast link
inside a node would save. With two ranks each node has one rank, and nothing to reduce inside.

The command starts its ranks. Each has as many threads as there are cores for each rank at the largest number of ranks,
so that one process alone uses no core that it would have to share with another. The table has Horovod if it is
installed (docs/guides/clusters.md).

    python -m benchmarks.communication --ranks 1 2
"""

import argparse
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torchvision.models import vgg16

from benchmarks.communication_table import DDP, rows_of
from benchmarks.loop_speed import settings_for
from benchmarks.loopback_agents import launch_agents
from benchmarks.measuring import print_results
from pipeline import distributed
from pipeline.artifacts.files import read_json, write_json
from pipeline.commands.diagnose.timing import Training, step_seconds, without_communication
from pipeline.datasets.decode import resize
from pipeline.distributed import CommConfig, World
from pipeline.models.network import Network
from pipeline.run_log import RunLog
from pipeline.training import state
from pipeline.training.evaluation import evaluate, evaluation_images, load_images
from pipeline.training.loop import TrainData, train
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings

_MODULE = "benchmarks.communication"
_AFTER, _BY_NODE = CommConfig(overlap=False), CommConfig(hierarchical=True)
_NODES = 2
_HOROVOD = "horovod"
"""Needs a separate launch, since it leaves a thread running."""

_LOCAL_PERIOD = 8
"""Steps between the averages of post-local SGD."""


@dataclass(frozen=True, kw_only=True)
class ExchangeMethod:
    """One method of gradient exchange.

    Attributes:
        settings: training settings that differ from the default.
        comm: None for the default.
        nodes: number of nodes over which the ranks are spread.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    comm: CommConfig | None = None
    nodes: int = 1


def exchange_methods(*, steps: int, ranks: int) -> Mapping[str, ExchangeMethod]:
    """Return the methods by name.

    Args:
        steps: of the run whose accuracy is measured.
        ranks: number of ranks.
    """
    between = {"compression": "bf16", "workers_per_node": ranks // _NODES}
    return {
        **{f"buckets of {mib} MiB": ExchangeMethod(comm=CommConfig(bucket_mib=mib)) for mib in (1, 5, 25, 100)},
        "one message": ExchangeMethod(comm=_AFTER),
        "by node": ExchangeMethod(comm=_BY_NODE, nodes=_NODES),
        "by node, bf16 between": ExchangeMethod(settings=between, comm=_BY_NODE, nodes=_NODES),
        "bf16": ExchangeMethod(settings={"compression": "bf16"}),
        "fp16": ExchangeMethod(settings={"compression": "fp16"}),
        "powersgd": ExchangeMethod(settings={"compression": "powersgd", "powersgd_rank": 4}, comm=_AFTER),
        "post-local SGD": ExchangeMethod(settings={"local_from_step": steps // 2, "local_period": _LOCAL_PERIOD}),
        "exact": ExchangeMethod(settings={"reduction": "exact"}),
        **({_HOROVOD: ExchangeMethod(comm=CommConfig(library="horovod"))} if find_spec("horovod") else {}),
    }


class Vgg16(Network):
    """torchvision's VGG-16 with the interface of the project's networks."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.backbone = vgg16(weights=None, num_classes=n_classes)

    @property
    def input_layer(self) -> nn.Module:
        """The first convolution."""
        layer: nn.Module = self.backbone.features[0]
        return layer

    @property
    def output_layer(self) -> nn.Module:
        """The classifier."""
        layer: nn.Module = self.backbone.classifier[-1]
        return layer

    def features(self, images: Tensor) -> Tensor:
        """Return the features (N, 4096) of images (N, 3, H, W)."""
        x = self.backbone.avgpool(self.backbone.features(images)).flatten(1)
        features: Tensor = self.backbone.classifier[:-1](x)
        return features

    def classify(self, features: Tensor) -> Tensor:
        """Return the logits (N, n_classes) of features (N, 4096)."""
        logits: Tensor = self.backbone.classifier[-1](features)
        return logits


def _network_available(network: str) -> AbstractContextManager[object]:
    """Let the trainer build VGG-16, which is not among the networks of studies, inside the context."""
    if network != "vgg16":
        return nullcontext()

    def build(_: str, n_classes: int, *, stem: str, seed: int) -> Network:  # noqa: ARG001 - as the trainer calls it
        torch.manual_seed(seed)
        return Vgg16(n_classes)

    return patch.object(state, "build_network", build)


class Digits:
    """scikit-learn's digits, enlarged; every fifth image is held out."""

    def __init__(self, image_size: int, device: torch.device) -> None:
        bunch = load_digits()
        pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
        images = np.stack([resize(Image.fromarray(image).convert("RGB"), image_size) for image in pixels])
        held_out = np.arange(len(images)) % 5 == 0
        self.train, self.test = images[~held_out], images[held_out]
        self.train_labels = torch.from_numpy(bunch.target[~held_out]).to(device)
        self.test_labels = torch.from_numpy(bunch.target[held_out]).to(device)


def _training(settings: TrainSettings, method: ExchangeMethod, digits: Digits, world: World) -> Training:
    return Training(
        settings=settings,
        images=load_images(digits.train, settings, training=True, device=world.device),
        labels=digits.train_labels,
        train_mask=np.ones(len(digits.train), dtype=np.bool_),
        world=world,
        micro_batch="auto",
        comm=method.comm,
    )


def _seconds(training: Training, timed_steps: int) -> float:
    """Return the mean seconds of a step on the slowest rank."""
    timed, n_steps = training, timed_steps
    if training.settings.local_period == _LOCAL_PERIOD:
        # Local from the first step on: earlier steps equal the default. Whole periods, each with an average.
        timed = replace(training, settings=replace(training.settings, local_from_step=0))
        n_steps = math.ceil(n_steps / _LOCAL_PERIOD) * _LOCAL_PERIOD
    return max(distributed.all_gather_object(float(np.mean(step_seconds(timed, n_steps)))))


def _top1(training: Training, seed: int, digits: Digits) -> float:
    """Train, and return the accuracy on the held-out images, 0 to 1."""
    world, settings = training.world, replace(training.settings, seed=seed)
    run = train(
        settings,
        TrainData(training.images.with_seed(seed), training.labels, training.train_mask),
        world=world,
        log=RunLog.silent(),
        options=RunOptions(comm=training.comm or CommConfig()),
    )
    test = evaluation_images(digits.test, settings.format, world.device)
    return evaluate(run.model, test, digits.test_labels, batch_size=256, world=world).top1


def measure(network: str, arguments: argparse.Namespace, digits: Digits, world: World) -> list[dict[str, Any]]:
    """Measure each method on these ranks: seconds of a step by round, at both batches, and accuracy by seed."""
    chosen = argparse.Namespace(**{**vars(arguments), "network": network})
    plain = replace(settings_for(chosen), simulated_workers=world.size, flip=False, steps=arguments.steps)
    methods = exchange_methods(steps=arguments.steps, ranks=world.size)
    trainings: dict[str, dict[str, Training]] = {}
    for name in arguments.ways:
        strong = _training(replace(plain, **methods[name].settings), methods[name], digits, world)
        weak = replace(strong, settings=replace(strong.settings, batch_size=world.size * arguments.batch_size))
        local = {"strong": strong, "local": without_communication(weak)} if world.size > 1 else {}
        trainings[name] = {"weak": weak, **local}
    results: dict[str, dict[str, Any]] = {
        name: {
            "network": network, "ranks": world.size, "nodes": methods[name].nodes, "way": name, "top1": [],
            **{kind: [] for kind in kinds},
        }
        for name, kinds in trainings.items()
    }  # fmt: skip
    with _network_available(network):
        for _ in range(arguments.rounds):
            for name, kinds in trainings.items():
                for kind, training in kinds.items():
                    results[name][kind].append(_seconds(training, arguments.timed_steps))
        for seed in range(arguments.seeds if network in arguments.learning else 0):
            for name, kinds in trainings.items():
                results[name]["top1"].append(_top1(kinds.get("strong", kinds["weak"]), seed, digits))
    return list(results.values())


def launches(arguments: argparse.Namespace) -> Iterator[tuple[str, int, int, list[str]]]:
    """Yield network, ranks, nodes and methods of each launch.

    One process runs the default alone. Methods by node need an even number of ranks.
    """
    for network in arguments.networks:
        alone = [(network, 1, 1, [DDP])] if 1 in arguments.ranks else []
        yield from alone
        for ranks in sorted({*arguments.ranks} - {1}):
            methods = exchange_methods(steps=arguments.steps, ranks=ranks)
            by_node = [name for name in arguments.ways if methods[name].nodes > 1 and ranks % _NODES == 0]
            one_node = [name for name in arguments.ways if methods[name].nodes == 1 and name not in (DDP, _HOROVOD)]
            horovod = [name for name in arguments.ways if name == _HOROVOD]
            for nodes, names in ((1, one_node), (_NODES, by_node), (1, horovod)):
                if names or (DDP in arguments.ways and names is one_node):
                    yield network, ranks, nodes, [DDP, *names]
                    yield from alone


def _arguments() -> argparse.Namespace:
    gpus = torch.cuda.device_count()
    counts = [count for count in (1, 2, 4, 8, 16) if count <= gpus] or [1, 2]
    names = [*exchange_methods(steps=1, ranks=_NODES)]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--networks", nargs="+", default=["resnet18", "resnet50", "vgg16"])
    parser.add_argument("--learning", nargs="*", default=["resnet18"], help="networks whose accuracy is also measured")
    parser.add_argument("--ways", nargs="+", choices=names, default=names)
    parser.add_argument("--ranks", nargs="+", type=int, default=counts, help="processes on this machine")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="of one process; split over processes for strong scaling and top1"
    )
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200, help="steps of the run whose accuracy is measured")
    parser.add_argument("--timed-steps", type=int, default=5, help="steps per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3, help="runs whose accuracy is measured")
    parser.add_argument("--threads", type=int, help="of each rank (default: cores / the largest number of ranks)")
    parser.add_argument(
        "--out", type=Path, default=Path(".work/communication.json"), help="raw times, written after each launch"
    )
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)  # output file of the ranks
    arguments = parser.parse_args()
    arguments.threads = arguments.threads or max(1, len(os.sched_getaffinity(0)) // max(arguments.ranks))
    return arguments


def main() -> int:
    """Print the table and one line of JSON."""
    arguments = _arguments()
    if distributed.launched_by_torchrun():
        with distributed.join_process_group(arguments.threads) as world:
            digits = Digits(arguments.image_size, world.device)
            measured = [row for network in arguments.networks for row in measure(network, arguments, digits, world)]
            if world.is_main:
                write_json(arguments.results, measured)
        return 0
    results: list[Any] = []
    for network, count, nodes, names in launches(arguments):
        # Repeated launches of one process measure its speed alone.
        repeated = any((entry["network"], entry["ranks"]) == (network, 1) for entry in results) and count == 1
        launched = argparse.Namespace(**{**vars(arguments), "seeds": 0 if repeated else arguments.seeds})
        with TemporaryDirectory() as folder:
            results += _launch(launched, network, count, nodes, names, Path(folder) / "results.json")
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(arguments.out, results)
    del arguments.results, arguments.out
    print_results(arguments, rows_of(results, arguments.batch_size))
    return int(any("failed" in entry for entry in results))


def _launch(
    arguments: argparse.Namespace, network: str, count: int, nodes: int, names: Sequence[str], path: Path
) -> list[dict[str, Any]]:
    """Launch the ranks and return their results; a failed launch gives rows with its exit code."""
    options = [
        *sys.argv[1:], f"--networks={network}", f"--results={path}", f"--threads={arguments.threads}",
        f"--seeds={arguments.seeds}", "--ways", *names,
    ]  # fmt: skip
    if nodes == 1:
        code = distributed.launch(_MODULE, options, count)
    else:
        code = launch_agents(_MODULE, options, agents=nodes, ranks_each=count // nodes)
    if code:
        failure = {"network": network, "ranks": count, "nodes": nodes, "failed": code}
        return [{**failure, "way": name} for name in names]
    results: list[dict[str, Any]] = read_json(path)
    return [{**entry, "nodes": nodes} for entry in results]


if __name__ == "__main__":
    sys.exit(main())
