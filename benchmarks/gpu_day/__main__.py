"""Measure what matters in a few minutes on a GPU, in steps with a time limit each, the most informative first.

The command can be killed and restarted at any time. A step that has ended does not run again, unless its file in
`--out` is deleted. `--dry-run` runs all steps on the CPU at tiny sizes, without compiling. See docs/guides/gpu-day.md.

    python -m benchmarks.gpu_day --minutes 30
"""

import argparse
import os
import shlex
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from benchmarks.gpu_day.running import (
    FINISHED,
    UNFINISHED,
    GpuDayStep,
    Row,
    outcome,
    passed,
    read_results,
    run_steps,
)
from benchmarks.unpacking import unpack
from pipeline.artifacts.files import atomic_path, write_text
from pipeline.errors import InputError

_PACKAGE = "benchmarks.gpu_day"
_28PX, _32PX = {"size": 28, "stem": "imagenet"}, {"size": 32, "stem": "cifar"}
_BARE, _WORKERS = "the training loop against a bare one", "the same with the BatchNorm groups of 8 and 32 workers"
_MAPS, _COMPILED = "convolutions on small maps as products, against plain ones", "the training loop with torch.compile"


def _step(name: str, limit_s: float, work: str, about: str, **options: object) -> GpuDayStep:
    return GpuDayStep(name=name, limit_s=limit_s, work=f"{_PACKAGE}.{work}", about=about, options=options)


def _slow_cases(step: GpuDayStep) -> GpuDayStep:
    """Return a step whose cases compile, or start several processes."""
    return replace(step, case_limit_s=265)


STUDIES = replace(
    _step("studies", 530, "studies:studies", "the project's studies, into its ledger"),
    case_limit_s=530, ends_early_s=45,
)  # fmt: skip
"""Needs a project, and the last seconds of its time to save its run."""

_LARGEST_MIB = 16
"""A larger file does not come back from a machine that is lent by the minute."""

STEPS = [
    _step("smoke", 300, "steps:smoke", "every network in every precision trains a few steps"),
    _step("padding", 200, "padding:padding", "images of four channels in bf16 against three in float32"),
    _step("throughput-28px-bf16", 240, "steps:throughput", _BARE, **_28PX, precision="bf16"),
    _step("throughput-32px-cifar-bf16", 240, "steps:throughput", _BARE, **_32PX, precision="bf16"),
    _step(
        "profile-28px-bf16", 120, "profiling:profiling", "what the GPU does in a step, and where the process waits",
        **_28PX, precision="bf16",
    ),
    _slow_cases(_step("bits", 530, "steps:bits", "the same bits twice and after a kill")),
    _step("workers-28px-bf16", 360, "steps:throughput", _WORKERS, **_28PX, precision="bf16", workers=(8, 32)),
    _slow_cases(_step(
        "graphs-28px-bf16", 400, "steps:graphs", "the training loop by CUDA graphs, and a bare step as one graph",
        **_28PX, precision="bf16",
    )),
    _slow_cases(_step("ranks", 280, "ranks:ranks", "one rank by NCCL; two ranks on one GPU have the bits of one")),
    _step("extraction", 120, "features:extraction", "the extraction of features against bare forward passes"),
    _slow_cases(_step("tsne", 300, "features:tsne", "t-SNE on the processor")),
    _step("small-maps-bf16", 300, "steps:small_maps", _MAPS, precision="bf16"),
    _step("profile-32px-cifar-bf16", 120, "profiling:profiling", "the same", **_32PX, precision="bf16"),
    _step("workers-32px-cifar-bf16", 420, "steps:throughput", _WORKERS, **_32PX, precision="bf16", workers=(8, 32)),
    _step("small-maps-fp32", 300, "steps:small_maps", _MAPS, precision="fp32"),
    _step("throughput-28px-fp32", 420, "steps:throughput", _BARE, **_28PX, precision="fp32"),
    _step("throughput-32px-cifar-fp32", 420, "steps:throughput", _BARE, **_32PX, precision="fp32"),
    _slow_cases(_step("compiling-28px-bf16", 530, "steps:compiling", _COMPILED, **_28PX, precision="bf16")),
    _slow_cases(_step("compiling-32px-cifar-bf16", 530, "steps:compiling", _COMPILED, **_32PX, precision="bf16")),
    STUDIES,
]  # fmt: skip
"""Each below nine minutes, the most informative first; the studies take what is left."""


def summary(steps: Sequence[GpuDayStep], results: Mapping[str, Row]) -> str:
    """Return the results of all steps as Markdown."""
    lines = ["# A day on a GPU", ""]
    if results:
        machine = next(iter(results.values()))["machine"]
        lines += [", ".join(f"{name} {value}" for name, value in machine.items()), ""]
    lines += ["| step | status | seconds | result |", "|---|---|---|---|"]
    for step in steps:
        result = results.get(step.name)
        cells = (result["status"], result["seconds"], outcome(result["rows"])) if result else ("not run", "", "")
        lines.append(f"| {step.name} | {' | '.join(map(str, cells))} |")
    for name, result in results.items():
        lines += ["", f"## {name}: {result['about']}", "", *_table(result["rows"])]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    columns = list(dict.fromkeys(["case", *(column for row in rows for column in row)]))
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(_cell(row.get(name)) for name in columns) + " |" for row in rows]
    return lines if rows else []


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    # The text of an error may have line breaks and bars.
    return text.replace("|", "/").replace("\n", " ")[:200]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps; return 0, 1 if a step or a case failed, 2 for bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [step.name for step in STEPS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help="steps to run")
    parser.add_argument("--list", action="store_true", help="list the steps with their limits, and run none")
    parser.add_argument("--minutes", type=float, help="end by then; the next call continues")
    parser.add_argument("--out", type=Path, default=Path(".work/gpu-day"), help="folder of the results")
    parser.add_argument("--project", type=Path, help="folder with params.yaml and images, for the step `studies`")
    parser.add_argument("--studies", nargs="+", default=[], metavar="NAME", help="studies of the project, in order")
    parser.add_argument("--earlier", type=Path, help="archive of --pack with earlier results, read into an empty --out")
    parser.add_argument("--pack", type=Path, help="write all results to this .tar.gz, after each step")
    parser.add_argument("--dry-run", action="store_true", help="run on the CPU, at tiny sizes")
    arguments = parser.parse_args(argv)
    chosen = [_with_project(step, arguments) for step in STEPS if step.name in arguments.only]
    if arguments.project is None and not arguments.dry_run:
        chosen = [step for step in chosen if step.name != STUDIES.name]
    try:
        if arguments.earlier is not None and not any(arguments.out.glob("*.json")):
            _unpack(arguments.earlier, arguments.out)
        if arguments.project is not None and not arguments.studies:
            raise InputError("--project: which studies to train is not given; add --studies NAME")
        if arguments.list:
            _list(chosen, arguments)
            return 0
        # Compiling takes minutes at any size.
        variables = {"CUDA_VISIBLE_DEVICES": "", "TORCHDYNAMO_DISABLE": "1"} if arguments.dry_run else {}
        command = shlex.join(["python", "-m", "benchmarks.gpu_day", *(sys.argv[1:] if argv is None else argv)])
        options = {"machine": f"{_PACKAGE}.steps:machine", "dry_run": arguments.dry_run, "command": command}
        with patch.dict(os.environ, variables):
            run_steps(
                chosen,
                arguments.out,
                minutes=arguments.minutes,
                after_step=lambda: _write_summary(arguments),
                **options,
            )
        results = _write_summary(arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"summary: {arguments.out / 'summary.md'}")
    return int(not all(map(_is_sound, results.values())))


def _is_sound(result: Row) -> bool:
    return result["status"] in (FINISHED, UNFINISHED) and all(map(passed, result["rows"]))


def _write_summary(arguments: argparse.Namespace) -> dict[str, Row]:
    """Write summary.md and the archive, and return the results; a killed command has them up to its last step."""
    results = read_results(arguments.out, STEPS, dry_run=arguments.dry_run)
    write_text(arguments.out / "summary.md", summary(STEPS, results))
    if arguments.pack is not None:
        _pack(arguments.out, arguments.pack)
    return results


def _with_project(step: GpuDayStep, arguments: argparse.Namespace) -> GpuDayStep:
    """Return the step `studies` with the project of the command line; others unchanged."""
    if step.name != STUDIES.name:
        return step
    project = str((arguments.project or Path()).resolve())
    return replace(
        step, options={"project": project, "names": arguments.studies, "out": str(arguments.out.resolve())}
    )  # fmt: skip


def _pack(folder: Path, target: Path) -> None:
    with atomic_path(target) as temporary, tarfile.open(temporary, "w:gz") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, arcname=path.name)
    for path in (*sorted(folder.iterdir()), target):
        if path.stat().st_size > _LARGEST_MIB << 20:
            size = f"{path.stat().st_size / 2**20:.1f} MiB, is larger than the {_LARGEST_MIB} MiB"
            fix = "up to which a file comes back from a lent machine; give fewer --studies"
            print(f"error: {path}: {size} {fix}", file=sys.stderr)


def _unpack(source: Path, folder: Path) -> None:
    try:
        unpack(source, folder)
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"--earlier: {source} cannot be read ({error}); give a file of --pack") from None


def _list(steps: Sequence[GpuDayStep], arguments: argparse.Namespace) -> None:
    results = read_results(arguments.out, steps, dry_run=arguments.dry_run)
    for step in steps:
        status = results[step.name]["status"] if step.name in results else "not run"
        print(f"{step.name:26} {step.limit_s:4.0f} s  {step.about}: {status}")


if __name__ == "__main__":
    sys.exit(main())
