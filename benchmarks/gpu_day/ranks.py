"""The step of two ranks: on one GPU they exchange by gloo, and exact sums have the bits of one process.

`python -m benchmarks.gpu_day.ranks FILE` trains as one rank, and rank 0 writes the digest of the weights to FILE.
"""

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu_day.running import Cases, Row
from benchmarks.gpu_day.steps import digest_of
from benchmarks.gpu_day.timing import settings_of, train_on
from benchmarks.loop_speed import random_images
from pipeline import distributed
from pipeline.distributed import SHARED_GPU
from pipeline.run_log import RunLog

_TINY = "--tiny"
_TIMEOUT_S = 120.0


def ranks(*, dry_run: bool) -> Cases:
    """Return one case: as one process, and as two ranks of torchrun."""
    return {"exact sums of 8 workers": partial(compare_ranks, dry_run=dry_run)}


def compare_ranks(*, dry_run: bool) -> Row:
    """Train with one process and with two ranks, and compare the bits of the weights."""
    if find_spec("timm") is None:
        return {"skipped": "timm is not installed; ranks compare its version"}
    digests, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        for size in (1, 2):
            file = Path(folder, str(size))
            torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"] if size > 1 else []
            command = [sys.executable, *torchrun, "-m", "benchmarks.gpu_day.ranks", str(file), *[_TINY] * dry_run]
            start = time.perf_counter()
            environment = {**os.environ, SHARED_GPU: "1"}
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
            if done.returncode:
                raise RuntimeError(f"{size} ranks ended with exit code {done.returncode}: {done.stderr[-400:]}")
            seconds.append(time.perf_counter() - start)
            digests.append(file.read_text())
    return {"same_bits": digests[0] == digests[1], "one_s": round(seconds[0], 1), "two_s": round(seconds[1], 1)}


def main() -> None:
    """Train as one rank."""
    file, *tiny = sys.argv[1:]
    network, size, batch = ("small_cnn", 8, 16) if tiny else ("resnet18", 28, 256)
    settings = settings_of(network, size, batch, steps=20, reduction="exact", threads=1, simulated_workers=8)
    # On a CPU the number of threads decides the bits.
    with distributed.join_process_group(1) as world:
        pixels, labels = random_images(4 * batch, size)
        run = train_on(settings, pixels, labels, world=world, log=RunLog.silent())
        if world.is_main:
            Path(file).write_text(digest_of({name: value.cpu() for name, value in run.model.state_dict().items()}))


if __name__ == "__main__":
    main()
