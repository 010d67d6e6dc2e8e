"""Ways to exchange gradients: how fast each trains, how it scales, and what a network knows after as many steps.

The project's own trainer on scikit-learn's digits, with networks of much arithmetic for their parameters (ResNet-18 and
ResNet-50) and one of little (VGG-16). Against the images/s of one process alone, which exchanges nothing and is
measured before and after each launch of several:

* weak: as many images for each process, so the batch grows with them; 1 is perfect.
* strong: the batch of one process, shared; 1 is perfect.

Within a launch all ways take turns in each round, and two columns are ratios of one round, as the median of rounds with
the extremes:

* kept: the time of a step without exchange over that of a whole one, at the larger batch.
* of_ddp: images/s over those of torch's own buckets of 25 MiB, the first of which has 1 MiB; they are in each launch.

Times are means over steps of the slowest rank. Those of post-local SGD are of its local phase, over whole periods, so
that it pays for its averages. Horovod has a launch of its own; its thread runs beside the other steps there.

`top1` is the accuracy on 360 images held out after `--steps` steps of the batch of one process, whatever the number of
ranks, as the median of `--seeds` runs with the extremes; BatchNorm normalizes over the images of one rank. It is
measured for the networks of `--learning` alone: ResNet-50 has learned little after so few steps, and VGG-16, which has
no BatchNorm, nothing.

Ways by node run, for even numbers of ranks, on two nodes that are none: two agents of torchrun on this machine, each
with half of the ranks, that meet over the loopback interface. What goes between them is as fast as what goes inside, so
that the rows show what the second level costs and what compression between nodes does to the accuracy, not what a fast
link inside would save. One rank a node, as two ranks have it, has nothing to add up inside.

Starts its ranks itself, each with as many threads as there are cores for each of the most ranks, so that one process
alone uses no core that it would have to share with another. Horovod is in the table where it is installed
(docs/guides/clusters.md).

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
from pipeline.commands.diagnosing.timing import Training, step_seconds, without_communication
from pipeline.datasets.decode import resize
from pipeline.distributed import CommConfig, World
from pipeline.models.resnet import Network
from pipeline.run_log import RunLog
from pipeline.training import state
from pipeline.training.evaluation import evaluate, evaluation_images, load_images
from pipeline.training.loop import RunOptions, TrainData, train
from pipeline.training.settings import TrainSettings

_MODULE = "benchmarks.communication"
_AFTER, _BY_NODE = CommConfig(overlap=False), CommConfig(hierarchical=True)
_NODES = 2
_HOROVOD = "horovod"
"""Leaves a thread behind."""


_LOCAL_PERIOD = 8
"""Steps between the averages of post-local SGD."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """What differs of a run's settings, and how its gradients travel.

    Attributes:
        nodes: over which the ranks are spread.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    comm: CommConfig | None = None
    nodes: int = 1


def ways(*, steps: int, ranks: int) -> Mapping[str, Way]:
    """By name; `steps` are those of the run whose accuracy is measured."""
    between = {"compression": "bf16", "workers_per_node": ranks // _NODES}
    return {
        **{f"buckets of {mib} MiB": Way(comm=CommConfig(bucket_mib=mib)) for mib in (1, 5, 25, 100)},
        "one message": Way(comm=_AFTER),
        "by node": Way(comm=_BY_NODE, nodes=_NODES),
        "by node, bf16 between": Way(settings=between, comm=_BY_NODE, nodes=_NODES),
        "bf16": Way(settings={"compression": "bf16"}),
        "fp16": Way(settings={"compression": "fp16"}),
        "powersgd": Way(settings={"compression": "powersgd", "powersgd_rank": 4}, comm=_AFTER),
        "post-local SGD": Way(settings={"local_from_step": steps // 2, "local_period": _LOCAL_PERIOD}),
        "tree": Way(settings={"reduction": "tree"}),
        **({_HOROVOD: Way(comm=CommConfig(library="horovod"))} if find_spec("horovod") else {}),
    }


class Vgg16(Network):
    """torchvision's, in the parts that the project's networks have."""

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

    return patch.object(state, "build_network", build)


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


def _training(settings: TrainSettings, way: Way, digits: Digits, ranks: World) -> Training:
    return Training(
        settings=settings,
        images=load_images(digits.train, settings, training=True, device=ranks.device),
        labels=digits.train_labels,
        train_mask=np.ones(len(digits.train), dtype=np.bool_),
        world=ranks,
        micro_batch="auto",
        comm=way.comm,
    )


def _seconds(training: Training, timed_steps: int) -> float:
    """The mean step of the slowest rank."""
    timed, n_steps = training, timed_steps
    if training.settings.local_period == _LOCAL_PERIOD:
        # From its first local step on, since those before are the default's, and with an average in each period.
        timed = replace(training, settings=replace(training.settings, local_from_step=0))
        n_steps = math.ceil(n_steps / _LOCAL_PERIOD) * _LOCAL_PERIOD
    return max(distributed.all_gather(float(np.mean(step_seconds(timed, n_steps)))))


def _top1(training: Training, seed: int, digits: Digits) -> float:
    """Of the images held out, after the steps of the settings; 0 to 1."""
    ranks, settings = training.world, replace(training.settings, seed=seed)
    run = train(
        settings,
        TrainData(training.images.with_seed(seed), training.labels, training.train_mask),
        ranks=ranks,
        log=RunLog.silent(),
        options=RunOptions(comm=training.comm or CommConfig()),
    )
    test = evaluation_images(digits.test, settings.format, ranks.device)
    return evaluate(run.model, test, digits.test_labels, batch_size=256, ranks=ranks).top1


def measured(network: str, arguments: argparse.Namespace, digits: Digits, ranks: World) -> list[dict[str, Any]]:
    """For each way that these ranks are to go: seconds of a step by round, at both batches, and accuracy by seed."""
    chosen = argparse.Namespace(**{**vars(arguments), "network": network})
    plain = replace(settings_for(chosen), simulated_workers=ranks.size, flip=False, steps=arguments.steps)
    known = ways(steps=arguments.steps, ranks=ranks.size)
    trainings: dict[str, dict[str, Training]] = {}
    for name in arguments.ways:
        strong = _training(replace(plain, **known[name].settings), known[name], digits, ranks)
        weak = replace(strong, settings=replace(strong.settings, batch_size=ranks.size * arguments.batch_size))
        local = {"strong": strong, "local": without_communication(weak)} if ranks.size > 1 else {}
        trainings[name] = {"weak": weak, **local}
    found: dict[str, dict[str, Any]] = {
        name: {
            "network": network, "ranks": ranks.size, "nodes": known[name].nodes, "way": name, "top1": [],
            **{kind: [] for kind in kinds},
        }
        for name, kinds in trainings.items()
    }  # fmt: skip
    with _builds(network):
        for _ in range(arguments.rounds):
            for name, kinds in trainings.items():
                for kind, training in kinds.items():
                    found[name][kind].append(_seconds(training, arguments.timed_steps))
        for seed in range(arguments.seeds if network in arguments.learning else 0):
            for name, kinds in trainings.items():
                found[name]["top1"].append(_top1(kinds.get("strong", kinds["weak"]), seed, digits))
    return list(found.values())


def launches(arguments: argparse.Namespace) -> Iterator[tuple[str, int, int, list[str]]]:
    """Network, ranks, nodes and ways of each; one process goes one way, and an odd number makes no two nodes."""
    for network in arguments.networks:
        alone = [(network, 1, 1, [DDP])] if 1 in arguments.ranks else []
        yield from alone
        for ranks in sorted({*arguments.ranks} - {1}):
            known = ways(steps=arguments.steps, ranks=ranks)
            by_node = [name for name in arguments.ways if known[name].nodes > 1 and ranks % _NODES == 0]
            others = [name for name in arguments.ways if known[name].nodes == 1 and name not in (DDP, _HOROVOD)]
            of_its_own = [name for name in arguments.ways if name == _HOROVOD]
            for nodes, names in ((1, others), (_NODES, by_node), (1, of_its_own)):
                if names or (DDP in arguments.ways and names is others):
                    yield network, ranks, nodes, [DDP, *names]
                    yield from alone


def _arguments() -> argparse.Namespace:
    gpus = torch.cuda.device_count()
    counts = [count for count in (1, 2, 4, 8, 16) if count <= gpus] or [1, 2]
    names = [*ways(steps=1, ranks=_NODES)]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--networks", nargs="+", default=["resnet18", "resnet50", "vgg16"])
    parser.add_argument("--learning", nargs="*", default=["resnet18"], help="networks whose accuracy is measured too")
    parser.add_argument("--ways", nargs="+", choices=names, default=names)
    parser.add_argument("--ranks", nargs="+", type=int, default=counts, help="processes on this machine")
    parser.add_argument("--batch-size", type=int, default=32, help="of one process; shared for strong scaling and top1")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200, help="of the run whose accuracy is measured")
    parser.add_argument("--timed-steps", type=int, default=5, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3, help="runs whose accuracy is measured")
    parser.add_argument("--threads", type=int, help="of each rank (default: as many as the most ranks have cores each)")
    parser.add_argument(
        "--out", type=Path, default=Path(".work/communication.json"), help="raw times, written after each launch"
    )
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)  # where the ranks leave what they measured
    arguments = parser.parse_args()
    arguments.threads = arguments.threads or max(1, len(os.sched_getaffinity(0)) // max(arguments.ranks))
    return arguments


def main() -> int:
    """Print the table and one line of JSON."""
    arguments = _arguments()
    if distributed.launched_by_torchrun():
        with distributed.join_process_group(arguments.threads) as ranks:
            digits = Digits(arguments.image_size, ranks.device)
            found = [row for network in arguments.networks for row in measured(network, arguments, digits, ranks)]
            if ranks.is_main:
                write_json(arguments.found, found)
        return 0
    everything: list[Any] = []
    for network, count, nodes, names in launches(arguments):
        # One process is measured again for its speed.
        again = any((one["network"], one["ranks"]) == (network, 1) for one in everything) and count == 1
        asked = argparse.Namespace(**{**vars(arguments), "seeds": 0 if again else arguments.seeds})
        with TemporaryDirectory() as folder:
            found = _launched(asked, network, count, nodes, names, Path(folder) / "found.json")
        everything += found
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(arguments.out, everything)
    del arguments.found, arguments.out
    print_results(arguments, rows_of(everything, arguments.batch_size))
    return int(any("failed" in one for one in everything))


def _launched(
    arguments: argparse.Namespace, network: str, count: int, nodes: int, names: Sequence[str], path: Path
) -> list[dict[str, Any]]:
    """What the ranks measured; a launch that failed leaves the others their results."""
    words = [
        *sys.argv[1:], f"--networks={network}", f"--found={path}", f"--threads={arguments.threads}",
        f"--seeds={arguments.seeds}", "--ways", *names,
    ]  # fmt: skip
    if nodes == 1:
        code = distributed.launch(_MODULE, words, count)
    else:
        code = launch_agents(_MODULE, words, agents=nodes, ranks_each=count // nodes)
    if code:
        place = {"network": network, "ranks": count, "nodes": nodes, "failed": code}
        return [{**place, "way": name} for name in names]
    found: list[dict[str, Any]] = read_json(path)
    return [{**one, "nodes": nodes} for one in found]


if __name__ == "__main__":
    sys.exit(main())
