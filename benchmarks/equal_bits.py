"""Train the same jobs with `reduction: exact` on other numbers of processes and by other collectives; compare hashes.

A hash is of the weights and buffers, the optimizer's state through the hash chain of the run, the training losses, and
the loss and the predictions on other images. Twelve simulated workers share each batch of 53 random images unevenly.
With `--reduction ddp` the same jobs have several hashes, since their sums round in another order. On the CPU.

The column `by node` sums inside each node first, then between the nodes: `4 on 2 nodes` is a job of two agents.

    python -m benchmarks.equal_bits
"""

import argparse
import hashlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.loop_speed import random_images, settings_for
from benchmarks.loopback_agents import launch_agents
from benchmarks.measuring import print_results
from benchmarks.printing import Row
from pipeline import distributed
from pipeline.artifacts.files import read_json, write_json
from pipeline.distributed import CommConfig, World
from pipeline.run_log import RunLog
from pipeline.training.evaluation import evaluate, load_images
from pipeline.training.loop import TrainData, TrainedRun, train
from pipeline.training.numerics import Precision
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings

_MODULE = "benchmarks.equal_bits"
_IMAGE_SIZE = 16
_BATCH = 53
_WORKERS = 12
_OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "sgd": {},
    "lamb": {
        "optimizer": "lamb",
        "optimizer_options": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6},
        "learning_rate": 0.01,
    },
    "muon": {
        "optimizer": "muon",
        "optimizer_options": {"momentum": 0.95, "nesterov": True},
        "learning_rate": 0.02,
    },
}
_COLLECTIVES: Mapping[str, CommConfig] = {
    "all-reduce": CommConfig(),
    "small buckets": CommConfig(bucket_mib=0.1),
    "one message": CommConfig(overlap=False),
    "by node": CommConfig(hierarchical=True),
}


def _settings(arguments: argparse.Namespace, network: str, optimizer: str, precision: Precision) -> TrainSettings:
    chosen = argparse.Namespace(network=network, image_size=_IMAGE_SIZE, batch_size=_BATCH)
    return replace(
        settings_for(chosen), simulated_workers=_WORKERS, reduction=arguments.reduction, threads=1,
        steps=arguments.steps, precision=precision, clip_norm=0.5, ema_decay=0.9, noise_scale_steps=2,
        **_OPTIMIZERS[optimizer],
    )  # fmt: skip


def _digest(trained: TrainedRun, settings: TrainSettings, world: World) -> str:
    """Return a hash of all that a run computes; all ranks call it."""
    pixels, labels = _images(slice(4 * _BATCH, None))
    images = load_images(pixels, settings, training=False, device=world.device)
    result = evaluate(trained.model, images, torch.from_numpy(labels), batch_size=8, world=world)
    digest = hashlib.sha256()
    for tensor in trained.model.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    losses = [record.train_loss for record in trained.history]
    links = [link.sha256 for link in trained.links]
    digest.update(repr((losses, links, trained.noise_scale, result.loss)).encode() + result.correct.tobytes())
    (of_all_ranks,) = set(distributed.all_gather_object(digest.hexdigest()))
    return str(of_all_ranks)


def _images(rows: slice) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels and labels of rows of the five batches that there are."""
    pixels, labels = random_images(5 * _BATCH, _IMAGE_SIZE)
    return pixels[rows], labels[rows]


def measure(arguments: argparse.Namespace, world: World) -> Iterator[dict[str, str]]:
    """Train every job by every collective on these ranks; yield rows of one job each: collective -> hash."""
    for network, optimizer, precision in itertools.product(
        arguments.networks, arguments.optimizers, arguments.precisions
    ):
        settings = _settings(arguments, network, optimizer, precision)
        pixels, labels = _images(slice(4 * _BATCH))
        data = TrainData(
            load_images(pixels, settings, training=True, device=world.device),
            torch.from_numpy(labels),
            np.ones(len(labels), dtype=np.bool_),
        )
        row = {"job": f"{network} {optimizer} {precision}"}
        for name, comm in _COLLECTIVES.items():
            trained = train(settings, data, world=world, log=RunLog.silent(), options=RunOptions(comm=comm))
            assert not trained.diverged, row
            row[name] = _digest(trained, settings, world)
        yield row


def _launch(ranks: int, nodes: int) -> list[dict[str, str]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        options = [*sys.argv[1:], f"--results={path}"]
        if nodes == 1:
            code = distributed.launch(_MODULE, options, ranks)
        else:
            code = launch_agents(_MODULE, options, agents=nodes, ranks_each=ranks // nodes)
        assert code == 0, f"the launch ended with {code}"
        results: list[dict[str, str]] = read_json(path)
    return results


def rows_of(launches: Mapping[str, Sequence[Mapping[str, str]]]) -> list[Row]:
    """Return a row for each job and number of processes, with short hashes, and whether all of a job are one.

    Args:
        launches: processes -> rows of `measure`, in the same order.
    """
    rows: list[Row] = []
    for results in zip(*launches.values(), strict=True):
        (job,) = {result["job"] for result in results}
        hashes = {result[name] for result in results for name in _COLLECTIVES}
        for processes, result in zip(launches, results, strict=True):
            short = {name: result[name][:8] for name in _COLLECTIVES}
            rows.append({"job": job, "processes": processes, **short, "hashes of the job": len(hashes)})
    return rows


def main() -> None:
    """Print the table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--networks", nargs="+", default=["small_cnn", "resnet18"])
    parser.add_argument("--optimizers", nargs="+", choices=_OPTIMIZERS, default=list(_OPTIMIZERS))
    parser.add_argument("--precisions", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--reduction", choices=["exact", "ddp"], default="exact")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 3, 4, 6])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)  # output file of the ranks
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # of the ranks, too
    if distributed.launched_by_torchrun():
        with distributed.join_process_group(1) as world:
            measured = list(measure(arguments, world))
            if world.is_main:
                write_json(arguments.results, measured)
        return
    launches = {str(ranks): _launch(ranks, 1) for ranks in arguments.ranks}
    if 4 in arguments.ranks:
        launches["4 on 2 nodes"] = _launch(4, 2)
    del arguments.results
    print_results(arguments, rows_of(launches))


if __name__ == "__main__":
    main()
