"""`python -m pipeline plan`: show what `dvc repro` would run, and its time, memory and disk.

Estimates times on this machine from a few real steps of each network, which take up to half a minute. On one GPU or CPU
the times are right within a factor of about two. They do not include exchanges between processes, downloads and other
load on the machine.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from pipeline.commands import command_parser
from pipeline.commands.plan.cost import PlannedCost, total_cost
from pipeline.commands.plan.jobs import PlannedRun, finetune_run, measure_all, planned_runs, stage_costs
from pipeline.commands.plan.size import (
    DataSize,
    StudyPlan,
    changed_stages,
    data_size,
    deduplicate_runs,
    n_kept_images,
    plan_from_ledger,
    plan_from_sizes,
    stage_graph,
    stages_to_run,
)
from pipeline.commands.plan.speed import Speed, Workload
from pipeline.config.batch_sizes import with_recorded_sizes
from pipeline.config.params import Params, load_params
from pipeline.config.study_plan import build_plan, plan_hash
from pipeline.host_memory import total_memory
from pipeline.instruction_set import limit_instructions
from pipeline.paths import DataPaths, WorkPaths
from pipeline.stats.formatting import aligned_lines


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    return command_parser("plan", __doc__, "params", "data", "work")


def main(argv: Sequence[str]) -> int:
    """Print the plan.

    Returns:
        0.

    Raises:
        InputError: bad parameters or data.
    """
    arguments = make_parser().parse_args(argv)
    data, work = DataPaths(root=arguments.data), WorkPaths(root=arguments.work)
    params = with_recorded_sizes(load_params(arguments.params), data)
    limit_instructions(params.train.isa)
    graph = stage_graph(params)
    changed, note = _changed(arguments.params)
    running = stages_to_run(graph, changed)
    size = data_size(params.prepare, data, prepared="prepare" not in running)
    print(
        f"{arguments.params}: {size.n_train:,} training and {size.n_test:,} test images of {params.prepare.dataset}, "
        f"{size.n_classes} classes ({size.source}){note}"
    )
    studies = deduplicate_runs(
        {f"train@{name}": _study_plan(params, name, size, running, data, work) for name in params.studies}
    )
    runs = {stage: planned_runs(params, stage.removeprefix("train@"), plan) for stage, plan in studies.items()}
    for network in params.networks:
        if running & {f"finetune@{network}", f"extract@{network}"}:
            runs[f"finetune@{network}"] = [finetune_run(params, network, size)]
    start = time.monotonic()
    print("measuring ...", file=sys.stderr, flush=True)
    speeds = measure_all(run for stage_runs in runs.values() for run in stage_runs)
    measured_s = time.monotonic() - start
    costs = stage_costs(params, running, size, runs, speeds)
    hashes = {f"train@{name}": _plan_hash(params, name) for name in params.studies}
    print("\n".join(table(list(graph), costs, studies, hashes)))
    print("\n".join(remarks(costs, runs, speeds, studies, measured_s)))
    return 0


def _changed(params: Path) -> tuple[frozenset[str] | None, str]:
    """Return the stages that DVC calls changed, and a remark if that is unknown."""
    if params.resolve() != (Path.cwd() / "params.yaml").resolve():
        return None, f"\nDVC runs params.yaml, not {params}: all stages count as not run yet"
    changed = changed_stages(Path.cwd())
    return changed, "" if changed is not None else "\n`dvc status` fails: all stages count as not run yet"


def _study_plan(
    params: Params, name: str, size: DataSize, running: frozenset[str], data: DataPaths, work: WorkPaths
) -> StudyPlan:
    stage, study = f"train@{name}", params.studies[name]
    networks = study.filter_networks if set(study.arms) != {"full"} else ()
    filtered = {network: f"filter@{network}" not in running for network in networks}
    if "prepare" not in running and all(filtered.values()):
        plan = plan_from_ledger(params, name, data, work)
        # DVC restores a complete stage, even if the ledger has lost runs of it.
        return plan if stage in running else StudyPlan(total=plan.total, skipped=plan.skipped, missing=[])
    kept = {
        network: n_kept_images(params, network, size.n_train, data, filtered=is_current)
        for network, is_current in filtered.items()
    }
    return plan_from_sizes(params, name, size, kept)


def _plan_hash(params: Params, name: str) -> str:
    return plan_hash(build_plan(name, params.studies[name], params.train, params.report))


def table(
    stages: Sequence[str], costs: dict[str, PlannedCost], studies: dict[str, StudyPlan], hashes: Mapping[str, str]
) -> Iterator[str]:
    """Yield a line for each stage and the total; shows the first 12 digits of the hash of a study's stated plan."""
    rows = [("stage", "state", "runs", "time", "memory", "disk", "plan (SHA-256)")]
    for stage in stages:
        plan = studies.get(stage)
        n_runs = f"{len(plan.missing)} of {plan.total}" if plan else ""
        amounts = _amounts(costs[stage]) if stage in costs else ("", "", "")
        state = "to run" if stage in costs else "up to date"
        rows.append((stage, state, n_runs, *amounts, hashes.get(stage, "")[:12]))
    missing = sum(len(plan.missing) for plan in studies.values())
    rows.append(("total", f"{len(costs)} stages", f"{missing:,}", *_amounts(total_cost(list(costs.values()))), ""))
    yield from aligned_lines(rows, left=2)


def remarks(
    costs: dict[str, PlannedCost],
    runs: dict[str, list[PlannedRun]],
    speeds: dict[Workload, Speed],
    studies: dict[str, StudyPlan],
    measured_s: float,
) -> Iterator[str]:
    """Yield what is skipped and why, what does not fit this machine, and the measured speeds.

    Args:
        measured_s: seconds that measuring the speeds took.
    """
    for stage, plan in studies.items():
        for reason, count in plan.skipped.items():
            yield f"{stage}: {count} runs are skipped: {reason}"
    if shared := sum(plan.shared for plan in studies.values()):
        yield f"{shared:,} runs that studies share are counted once, with the first study"
    total = total_cost(list(costs.values()))
    free = shutil.disk_usage(Path.cwd()).free
    if total.disk > free:
        yield f"warning: the disk has {_bytes(free)} free, the run needs about {_bytes(total.disk)}"
    memory = _memory()
    if total.memory > memory:
        yield (
            f"warning: a process needs about {_bytes(total.memory)} of memory, but there are {_bytes(memory)}: "
            "raise simulated_workers or lower the batch sizes"
        )
    for workload, speed in speeds.items():
        images, seconds = list(speed.micro_batch_seconds.items())[-1]
        yield (
            f"measured: {workload.network}, {workload.stem} stem, {workload.crop_size} pixels, "
            f"{images} images at a time: {_rate(images / seconds)} images/s"
        )
    n_processes = max((run.workers for stage_runs in runs.values() for run in stage_runs), default=1)
    if n_processes > 1:
        yield f"{n_processes} processes work at a time, each with the memory shown; their exchanges are not counted"
    if speeds:
        yield f"measured in {measured_s:.0f} s on {_device_name()}"


def _memory() -> float:
    """Return the bytes of the GPU; without a GPU those of the machine, container or batch job."""
    if torch.cuda.is_available():
        return float(torch.cuda.mem_get_info()[1])
    return float(total_memory())


def _device_name() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{torch.get_num_threads()} CPU threads"


def _amounts(cost: PlannedCost) -> tuple[str, str, str]:
    return duration(cost.seconds), _bytes(cost.memory), _bytes(cost.disk)


def duration(seconds: float) -> str:
    """Return the duration in the largest unit that gives two or more."""
    for unit, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.{0 if seconds >= 10 * unit else 1}f} {name}"
    return f"{seconds:.0f} s"


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


def _bytes(count: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if count >= unit:
            return f"{count / unit:.{0 if count >= 10 * unit else 1}f} {name}"
    return f"{count / 1e3:.0f} kB"
