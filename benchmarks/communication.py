"""Ways to exchange gradients: how fast each trains, how it scales, and what a network knows after as many steps.

The project's own trainer on scikit-learn's digits, with a network of much arithmetic for its parameters (ResNet-50) and
one of little (VGG-16). On one process nothing is exchanged; against its images/s:

* weak: as many images for each process, so the batch grows with them; 1 is perfect.
* strong: the batch of one process, shared; 1 is perfect.

`kept` is the time of a step without exchange over that of a whole one, at the larger batch (Horovod's thread runs in
both of its own). Times are means over steps of the slowest rank, of post-local SGD over whole periods, so that it pays
for its averages.

`top1` is the accuracy on images held out after `--steps` steps of the batch of one process, whatever the number of
ranks; BatchNorm normalises over the images of one rank. It is empty where a way changes rounding alone, which
tests/distributed/test_communication.py holds: there it is that of the buckets of 25 MiB. And for networks that are not
in `--learning`: VGG-16, which has no BatchNorm, is at chance after these steps.

Ways by node run, for even numbers of ranks, on two nodes that are none: two agents of torchrun on this machine, each
with half of the ranks, that meet over the loopback interface. What goes between them is as fast as what goes inside, so
that the rows show what the second level costs and what compression between nodes does to the accuracy, not what a fast
link inside would save. One rank a node, as two ranks have it, has nothing to add up inside.

Starts its ranks itself, each with as many threads as there are cores for each of the most ranks, so that one process
alone uses no core that it would have to share with another. Horovod is in the table where it is installed
(docs/clusters.md).

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
from itertools import product
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
from benchmarks.loopback_agents import launch_agents
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

_MODULE = "benchmarks.communication"
_AFTER, _BY_NODE = Transport(overlap=False), Transport(hierarchical=True)
_NODES = 2
_ALONE = "buckets of 25 MiB"
"""What one process is asked for, which exchanges nothing."""


_LOCAL_PERIOD = 8
"""Steps between the averages of post-local SGD."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """What differs of a run's settings, and how its gradients travel.

    Attributes:
        nodes: over which the ranks are spread.
        learns: whether its weights differ from the default's by more than rounding.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    transport: Transport | None = None
    nodes: int = 1
    learns: bool = False


def ways(*, steps: int, ranks: int) -> Mapping[str, Way]:
    """By name; `steps` are those of the run whose accuracy is measured."""
    buckets = {f"buckets of {mib} MiB": Way(transport=Transport(bucket_mib=mib)) for mib in (1, 5, 25, 100)}
    between = {"compression": "bf16", "workers_per_node": ranks // _NODES}
    return {
        **buckets,
        _ALONE: replace(buckets[_ALONE], learns=True),
        "one message": Way(transport=_AFTER),
        "by node": Way(transport=_BY_NODE, nodes=_NODES),
        "by node, bf16 between": Way(settings=between, transport=_BY_NODE, nodes=_NODES, learns=True),
        "bf16": Way(settings={"compression": "bf16"}, learns=True),
        "fp16": Way(settings={"compression": "fp16"}, learns=True),
        "powersgd": Way(settings={"compression": "powersgd", "powersgd_rank": 4}, transport=_AFTER, learns=True),
        "post-local SGD": Way(settings={"local_from_step": steps // 2, "local_period": _LOCAL_PERIOD}, learns=True),
        "tree": Way(settings={"reduction": "tree"}),
        **({"horovod": Way(transport=Transport(library="horovod"))} if find_spec("horovod") else {}),
    }


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
    """Of a step, of the slowest rank: the mean of a round, and of rounds the median."""
    timed, n_steps = training, arguments.timed_steps
    if training.settings.local_period == _LOCAL_PERIOD:
        # From its first local step on, since those before are the default's, and with an average in each period.
        timed = replace(training, settings=replace(training.settings, local_from_step=0))
        n_steps = math.ceil(n_steps / _LOCAL_PERIOD) * _LOCAL_PERIOD
    own = [float(np.mean(step_seconds(timed, n_steps))) for _ in range(arguments.rounds)]
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
    """Seconds of a step at both batches and accuracy, for each way that these ranks are to go."""
    chosen = argparse.Namespace(**{**vars(arguments), "network": network})
    plain = replace(settings_for(chosen), simulated_workers=ranks.count, flip=False, steps=arguments.steps)
    known = ways(steps=arguments.steps, ranks=ranks.count)
    found = []
    for name in arguments.ways:
        way = known[name]
        small = _training(replace(plain, **way.settings), way, digits, ranks)
        large = replace(small, settings=replace(small.settings, batch_size=ranks.count * arguments.batch_size))
        with _builds(network):
            weak = _seconds(large, arguments)
            strong, local = weak, weak
            if ranks.count > 1:
                strong, local = (_seconds(one, arguments) for one in (small, without_exchange(large)))
            learning = way.learns and network in arguments.learning
            top1 = _top1(small, digits) if learning else None
        found.append({
            "network": network, "ranks": ranks.count, "nodes": way.nodes, "way": name, "weak": weak, "strong": strong,
            "local": local, "top1": top1,
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
            "nodes": one["nodes"],
            "way": one["way"] if one["ranks"] > 1 else "alone",
            "images_per_s": round(one["ranks"] * batch_size / one["weak"], 1),
            "weak": f"{base / one['weak']:.3f}" if base else "",
            "strong": f"{base / one['ranks'] / one['strong']:.3f}" if base else "",
            "kept": f"{one['local'] / one['weak']:.3f}",
            "top1": "" if one["top1"] is None else round(one["top1"], 4),
        })  # fmt: skip
    return rows


def launches(arguments: argparse.Namespace) -> Iterator[tuple[str, int, int, list[str]]]:
    """Network, ranks, nodes and ways of each; one process goes one way, and an odd number makes no two nodes."""
    # Horovod, the last way, leaves a thread behind, which no other network's times shall contain.
    for network, ranks in product(arguments.networks, arguments.ranks):
        known = ways(steps=arguments.steps, ranks=ranks)
        for nodes in (1, _NODES):
            names = [name for name in arguments.ways if known[name].nodes == nodes and ranks % nodes == 0]
            if ranks == 1:
                names = [_ALONE] if nodes == 1 else []
            if names:
                yield network, ranks, nodes, names


def _arguments() -> argparse.Namespace:
    gpus = torch.cuda.device_count()
    counts = [count for count in (1, 2, 4, 8, 16) if count <= gpus] or [1, 2]
    names = [*ways(steps=1, ranks=_NODES)]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--networks", nargs="+", default=["resnet50", "vgg16"])
    parser.add_argument("--learning", nargs="*", default=["resnet50"], help="networks whose accuracy is measured too")
    parser.add_argument("--ways", nargs="+", choices=names, default=names)
    parser.add_argument("--ranks", nargs="+", type=int, default=counts, help="processes on this machine")
    parser.add_argument("--batch-size", type=int, default=32, help="of one process; shared for strong scaling and top1")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60, help="of the run whose accuracy is measured")
    parser.add_argument("--timed-steps", type=int, default=5, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of each rank (default: as many as the most ranks have cores each)")
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)  # where the ranks leave what they measured
    arguments = parser.parse_args()
    arguments.threads = arguments.threads or max(1, len(os.sched_getaffinity(0)) // max(arguments.ranks))
    return arguments


def main() -> int:
    """Print the table and one line of JSON."""
    arguments = _arguments()
    if distributed.launched():
        with distributed.session(arguments.threads) as ranks:
            digits = Digits(arguments.image_size, ranks.device)
            found = [row for network in arguments.networks for row in measured(network, arguments, digits, ranks)]
            if ranks.is_main:
                write_json(arguments.found, found)
        return 0
    everything: list[Any] = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        for network, count, nodes, names in launches(arguments):
            words = [
                *sys.argv[1:],
                f"--networks={network}",
                f"--found={path}",
                f"--threads={arguments.threads}",
                "--ways",
                *names,
            ]
            if nodes == 1:
                code = distributed.launch(_MODULE, words, count)
            else:
                code = launch_agents(_MODULE, words, agents=nodes, ranks_each=count // nodes)
            if code:
                return code
            everything += read_json(path)
    del arguments.found
    print_results(arguments, rows_of(everything, arguments.batch_size))
    return 0


if __name__ == "__main__":
    sys.exit(main())
