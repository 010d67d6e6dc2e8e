"""Measure which kinds of operations a training step on a CPU spends its time on.

Profiles forward pass, backward pass and update on one fixed batch, with torchvision's network and with this project's,
by torch's profiler. A row has the milliseconds of a step, and the share of each kind of operations in the time of all,
each operation without those that it calls.

    python -m benchmarks.step_shares --sizes 16 32 --batch-size 256
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from torch.profiler import ProfilerActivity, profile
from torchvision.models import get_model

from benchmarks.loop_speed import N_CLASSES, bare_steps, bare_training, settings_for
from benchmarks.measuring import print_results, seconds_of
from benchmarks.printing import Row
from pipeline import distributed

_KINDS: Mapping[str, tuple[str, ...]] = {
    "small maps": ("batchsieve::", "aten::addmm_"),
    "convolution": ("aten::mkldnn_convolution", "aten::convolution"),
    "BatchNorm": ("aten::native_batch_norm", "aten::native_batch_norm_backward"),
    "elementwise": ("aten::relu", "aten::clamp_min", "aten::threshold_backward", "aten::add", "aten::mul"),
    "pooling": ("aten::max_pool2d", "aten::mean", "aten::adaptive_avg_pool2d", "aten::div"),
    "update": ("aten::_fused_sgd",),
    "copies": ("aten::copy_", "aten::contiguous", "aten::clone", "aten::zero_", "aten::fill_"),
}
"""Kind -> beginnings of the names of its operations; the first kind that fits counts."""


def shares(times: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the share of each kind in the time of all operations, 0 to 1; `other` are those of no kind.

    Args:
        times: name and time of each operation, in any unit, without the operations that it calls.
    """
    totals: dict[str, float] = defaultdict(float)
    for name, time in times:
        totals[next((kind for kind, starts in _KINDS.items() if name.startswith(starts)), "other")] += time
    total = sum(totals.values())
    return {kind: totals[kind] / total for kind in (*_KINDS, "other")}


def profiled(run: Callable[[int], None], steps: int) -> Row:
    """Return the milliseconds of a step without the profiler, and the shares with it, in percent."""
    run(2)
    milliseconds = 1000 * min(seconds_of(lambda: run(steps)) for _ in range(3)) / steps
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        run(steps)
    by_kind = shares((event.key, event.self_cpu_time_total) for event in recorded.key_averages())
    return {"ms": round(milliseconds, 1), **{kind: round(100 * share, 1) for kind, share in by_kind.items()}}


def main() -> None:
    """Print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 32], help="image sizes in pixels")
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    rows: list[Row] = []
    with distributed.join_process_group("auto") as world:
        for size in arguments.sizes:
            arguments.image_size = size
            settings = settings_for(arguments)
            bare = bare_steps(get_model(arguments.network, num_classes=N_CLASSES), settings, world.device)
            for name, run in (("torchvision", bare), ("ours", bare_training(settings, world))):
                rows.append({"pixels": size, "network": name, **profiled(run, arguments.steps)})
    print_results(arguments, rows)


if __name__ == "__main__":
    main()
