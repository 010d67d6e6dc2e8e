"""Measure how much a busy process on the same machine slows the computations, by setting of OpenMP.

Threads that wait for each other spin. If all cores are in use, they spin while the thread that they wait for is not
running. Every setting runs in a separate process, both on a quiet machine and with one process that computes without a
pause. The settings take turns. Each line gives medians over the rounds in milliseconds, and the slowdown relative to
torch's default on a quiet machine.

    python -m benchmarks.busy_process --work step extract tsne
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "as torch has it": {},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    **{f"GOMP_SPINCOUNT={count}": {"GOMP_SPINCOUNT": count} for count in ("0", "100", "1000", "10000", "100000")},
}
_OPENMP_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
# It ends with its parent, which may be killed.
_BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"


def training_step(arguments: argparse.Namespace) -> Callable[[], None]:
    """Return a function that runs forward, backward and optimizer step of ResNet-18."""
    import torch

    from benchmarks.loop_speed import bare_training, settings_for
    from pipeline.distributed import World

    torch.set_num_threads(arguments.threads)
    namespace = argparse.Namespace(image_size=32, network="resnet18", batch_size=128)
    run = bare_training(settings_for(namespace), World(rank=0, size=1, device=torch.device("cpu")))
    return lambda: run(1)


def extraction(arguments: argparse.Namespace) -> Callable[[], None]:
    """Return a function that runs a forward pass of ResNet-18 in evaluation mode."""
    import torch

    from pipeline.models import build_network

    torch.set_num_threads(arguments.threads)
    model = build_network("resnet18", 10, stem="imagenet", seed=0).to(memory_format=torch.channels_last).eval()
    images = torch.randn(256, 3, 32, 32).to(memory_format=torch.channels_last)

    def run() -> None:
        with torch.inference_mode():
            model(images)

    return run


def tsne(arguments: argparse.Namespace) -> Callable[[], None]:
    """Return a function that runs fifty iterations of openTSNE on 2,000 points."""
    import openTSNE

    points = np.random.default_rng(0).normal(size=(2000, 50)).astype(np.float32)
    affinities = openTSNE.affinity.PerplexityBasedNN(points, n_jobs=arguments.threads, random_state=0)
    start = openTSNE.initialization.random(points, random_state=0)

    def run() -> None:
        openTSNE.TSNEEmbedding(start.copy(), affinities, n_jobs=arguments.threads).optimize(50, inplace=True)

    return run


WORK: Mapping[str, Callable[[argparse.Namespace], Callable[[], None]]] = {
    "step": training_step,
    "extract": extraction,
    "tsne": tsne,
}


def time_here(arguments: argparse.Namespace) -> None:
    """Print the median milliseconds of the first workload, in this process."""
    run = WORK[arguments.work[0]](arguments)
    run()
    seconds: list[float] = []
    while sum(seconds) < arguments.seconds:
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    print(1000 * float(np.median(seconds)))


@contextmanager
def _busy_process(*, busy: bool) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", _BUSY]) if busy else None
    try:
        yield
    finally:
        if process:
            process.kill()
            process.wait()


def _measure(work: str, setting: Mapping[str, str], arguments: argparse.Namespace, *, busy: bool) -> float:
    environment = {name: value for name, value in os.environ.items() if name not in _OPENMP_VARIABLES}
    # With an empty value the package does not set its default.
    environment |= setting or {"GOMP_SPINCOUNT": ""}
    options = ["--here", "--work", work, "--seconds", str(arguments.seconds), "--threads", str(arguments.threads)]
    with _busy_process(busy=busy):
        command = [sys.executable, "-m", "benchmarks.busy_process", *options]
        answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(answer.stdout)


def main() -> None:
    """Print a line for each setting and workload, then all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", choices=[*WORK], default=[*WORK])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds per measurement")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--here", action="store_true", help="measure once, in this process")
    arguments = parser.parse_args()
    if arguments.here:
        time_here(arguments)
        return
    results = []
    for work in arguments.work:
        rounds = [
            {
                (name, busy): _measure(work, setting, arguments, busy=busy)
                for name, setting in SETTINGS.items()
                for busy in (False, True)
            }
            for _ in range(arguments.rounds)
        ]
        medians = {key: float(np.median([times[key] for times in rounds])) for key in rounds[0]}
        base = medians["as torch has it", False]
        for name in SETTINGS:
            quiet, busy = medians[name, False], medians[name, True]
            results.append({"work": work, "setting": name, "quiet_ms": round(quiet, 1), "busy_ms": round(busy, 1)})
            print(f"{work:8} {name:24} quiet {quiet:7.1f} ({quiet / base:.2f})  busy {busy:7.1f} ({busy / base:.2f})")
    print(json.dumps({"cores": os.cpu_count(), **vars(arguments), "results": results}))


if __name__ == "__main__":
    main()
