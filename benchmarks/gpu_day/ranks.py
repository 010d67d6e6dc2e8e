"""The step of several processes: what they exchange leaves the bits of one process.

Two ranks share the GPU and exchange by gloo. NCCL rejects two ranks on one GPU, so one rank takes the code path of
several and exchanges with itself: communicators, groups, timeouts and streams are those of a real job.

`python -m benchmarks.gpu_day.ranks FILE` trains as one rank, and rank 0 writes digests of the weights to FILE.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

from benchmarks.gpu_day.running import Cases, Row
from benchmarks.gpu_day.steps import digest_of
from benchmarks.gpu_day.timing import settings_of, train_on
from benchmarks.loop_speed import random_images
from pipeline import distributed
from pipeline.distributed import SHARED_GPU, CommConfig, World
from pipeline.run_log import RunLog
from pipeline.training.checkpointing import Checkpointer, Checkpoints, stop_and_save_flags
from pipeline.training.settings import TrainSettings

_TINY, _AS_SEVERAL = "--tiny", "--as-several"
_TIMEOUT_S = 120.0
_READERS = tuple(
    f"pipeline.distributed.{name}.is_distributed"
    for name in ("collectives", "data_parallel", "exact_sum", "process_group")
)
# A machine without a network may not know its own name.
_THIS_MACHINE = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def ranks(*, dry_run: bool) -> Cases:
    """Return the cases: one rank that exchanges with itself, and two ranks."""
    return {
        "one rank with itself": partial(compare_with_itself, dry_run=dry_run),
        "exact sums of 8 workers": partial(compare_ranks, dry_run=dry_run),
    }


def compare_with_itself(*, dry_run: bool) -> Row:
    """Train one rank of torchrun that exchanges with itself, by NCCL on a GPU; compare with one process."""
    alone, seconds = _alone(dry_run=dry_run)
    as_several, with_itself_s = _train(1, _AS_SEVERAL, dry_run=dry_run)
    same = {f"same_bits_{name}": as_several[name] == alone[name] for name in alone}
    return {**same, "one_s": seconds, "with_itself_s": with_itself_s}


def compare_ranks(*, dry_run: bool) -> Row:
    """Train with one process and with two ranks, and compare the bits of the weights."""
    if find_spec("timm") is None:
        return {"skipped": "timm is not installed; ranks compare its version"}
    one, one_s = _alone(dry_run=dry_run)
    two, two_s = _train(2, dry_run=dry_run)
    return {"same_bits": one["exact"] == two["exact"], "one_s": one_s, "two_s": two_s}


@cache
def _alone(*, dry_run: bool) -> tuple[dict[str, str], float]:
    """Train with one process, which both cases compare with."""
    return _train(0, dry_run=dry_run)


def _train(size: int, *options: str, dry_run: bool) -> tuple[dict[str, str], float]:
    """Train with `size` ranks of torchrun, 0 without it; return the digests by variant, and the seconds."""
    torchrun = ["torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={size}", "-m"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "digests.json")
        launcher = torchrun if size else []
        command = [sys.executable, "-m", *launcher, "benchmarks.gpu_day.ranks", str(file), *options]
        shared = {SHARED_GPU: "1"} if size > 1 else {}
        environment = {**os.environ, **_THIS_MACHINE, **shared}
        start = time.perf_counter()
        done = subprocess.run(
            [*command, *[_TINY] * dry_run], env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{size} ranks ended with exit code {done.returncode}: {done.stderr[-400:]}")
        digests: dict[str, str] = json.loads(file.read_text())
        return digests, round(time.perf_counter() - start, 1)


def main() -> None:
    """Train as one rank."""
    file, *options = sys.argv[1:]
    network, size, batch = ("small_cnn", 8, 16) if _TINY in options else ("resnet18", 28, 256)
    settings = settings_of(network, size, batch, steps=20, threads=1, simulated_workers=8)
    # On a CPU the number of threads decides the bits.
    with distributed.join_process_group(1) as world, _as_several() if _AS_SEVERAL in options else nullcontext():
        variants = {"exact": (replace(settings, reduction="exact"), CommConfig())}
        if world.size == 1:
            variants |= {"ddp": (settings, CommConfig()), "hierarchical": (settings, CommConfig(hierarchical=True))}
        digests = {name: _digest(*variant, world) for name, variant in variants.items()}
        if world.is_main:
            Path(file).write_text(json.dumps(digests))


def _digest(settings: TrainSettings, comm: CommConfig, world: World) -> str:
    """Train with checkpoints, and return the digest of the weights."""
    pixels, labels = random_images(4 * settings.batch_size, settings.format.image_size)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(Path(folder))
        checkpointer = Checkpointer(checkpoints, stop_and_save_flags(), world=world, steps=settings.steps // 2)
        run = train_on(
            settings, pixels, labels, world=world, log=RunLog.silent(), checkpointer=checkpointer, comm=comm
        )  # fmt: skip
    return digest_of({name: value.cpu() for name, value in run.model.state_dict().items()})


@contextmanager
def _as_several() -> Iterator[None]:
    """Let one rank take the code path of several."""
    with ExitStack() as stack:
        for name in _READERS:
            stack.enter_context(patch(name, return_value=True))
        yield


if __name__ == "__main__":
    main()
