"""The steps of the stages before training: extraction of features, and t-SNE, which uses the processor."""

import argparse
import time
from functools import partial
from importlib.util import find_spec

import numpy as np
import torch

from benchmarks.gpu_day.running import Cases, Row
from benchmarks.loop_speed import extraction_ratios
from benchmarks.measuring import ratio_spread
from pipeline import distributed

_DIMENSIONS = 50
_CLASSES = 10


def extraction(*, dry_run: bool) -> Cases:
    """Return cases that compare the extraction of features with bare forward passes, in single precision."""
    networks, size, batch, steps, rounds = ["resnet18", "resnet101", "resnet152"], 32, 500, 40, 3
    if dry_run:
        networks, size, batch, steps, rounds = ["resnet18"], 8, 8, 2, 1
    arguments = {"image_size": size, "batch_size": batch, "steps": steps, "rounds": rounds}
    return {name: partial(extract, argparse.Namespace(network=name, **arguments)) for name in networks}


def extract(arguments: argparse.Namespace) -> Row:
    """Return images/s of the extraction, and its ratio to bare forward passes."""
    with distributed.join_process_group("auto") as world:
        ratios, rate = extraction_ratios(arguments, world)
    spread = ratio_spread(ratios)
    return {
        "images_per_s": round(rate), "ratio": spread["ratio_median"], "lowest": spread["ratio_min"],
        "highest": spread["ratio_max"],
    }  # fmt: skip


def tsne(*, dry_run: bool) -> Cases:
    """Return cases that time t-SNE, the longest part of the filter; it uses all cores."""
    return {f"{n} points": partial(embed, n) for n in ([200] if dry_run else [10_000, 50_000])}


def embed(n: int) -> Row:
    """Return the seconds of one embedding of points around the centers of classes."""
    if find_spec("openTSNE") is None:
        return {"skipped": "openTSNE is not installed"}
    # Packages that the other steps do not need.
    from pipeline.config.reduce import TsneConfig
    from pipeline.reduction.tsne import fit_tsne

    rng = np.random.default_rng(0)
    points = rng.normal(size=(n, _DIMENSIONS)) + 3 * rng.normal(size=(_CLASSES, _DIMENSIONS))[np.arange(n) % _CLASSES]
    threads = torch.get_num_threads()
    settings = TsneConfig(n_jobs=threads).model_dump()
    start = time.perf_counter()
    result = fit_tsne(points.astype(np.float32), settings, report=lambda *_: None)
    return {
        "tsne_s": round(time.perf_counter() - start, 2),
        "threads": threads,
        "finite": bool(np.isfinite(result.coordinates).all()),
    }
