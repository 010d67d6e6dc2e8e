"""Measure what matters in a few minutes on a GPU, in steps with a time limit each, the most informative first.

The command can be killed and restarted at any time. A step that has ended does not run again, unless its file in
`--out` is deleted. `--dry-run` runs all steps on the CPU at tiny sizes, without compiling. See docs/guides/gpu-day.md.

    python -m benchmarks.gpu_day --minutes 30
"""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.gpu_day.running import GpuDayStep, Row, outcome, passed, read_results, run_steps
from pipeline.artifacts.files import write_text
from pipeline.errors import InputError

_MODULE = "benchmarks.gpu_day.steps"
_IMAGES = {"28px": {"size": 28, "stem": "imagenet"}, "32px-cifar": {"size": 32, "stem": "cifar"}}


def _step(name: str, limit_s: float, about: str, **options: object) -> GpuDayStep:
    """Return a step; the first word of its name is the name of its function."""
    work = name.split("-")[0] if not name.startswith("small-maps") else "small_maps"
    return GpuDayStep(name=name, limit_s=limit_s, work=f"{_MODULE}:{work}", about=about, options=options)


STEPS = [
    _step("smoke", 300, "every network in every precision trains a few steps"),
    *(
        _step(f"throughput-{name}-bf16", 240, "the training loop against a bare one", **images, precision="bf16")
        for name, images in _IMAGES.items()
    ),
    _step("bits", 480, "the same bits twice and after a kill"),
    _step("small-maps-bf16", 300, "convolutions on small maps as products, against plain ones", precision="bf16"),
    _step("small-maps-fp32", 300, "convolutions on small maps as products, against plain ones", precision="fp32"),
    *(
        _step(f"throughput-{name}-fp32", 420, "the training loop against a bare one", **images, precision="fp32")
        for name, images in _IMAGES.items()
    ),
    *(
        _step(
            f"compiling-{name}-bf16",
            530,
            "the training loop with and without torch.compile",
            **images,
            precision="bf16",
        )
        for name, images in _IMAGES.items()
    ),
]
"""Each below nine minutes, the most informative first."""


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
    parser.add_argument("--minutes", type=float, help="start no step whose limit would end later than this")
    parser.add_argument("--out", type=Path, default=Path(".work/gpu-day"), help="folder of the results")
    parser.add_argument("--dry-run", action="store_true", help="run on the CPU, at tiny sizes")
    arguments = parser.parse_args(argv)
    chosen = [step for step in STEPS if step.name in arguments.only]
    try:
        if arguments.list:
            _list(chosen, arguments)
            return 0
        if arguments.dry_run:
            # Compiling takes minutes at any size.
            os.environ.update({"CUDA_VISIBLE_DEVICES": "", "TORCHDYNAMO_DISABLE": "1"})
        command = shlex.join(["python", "-m", "benchmarks.gpu_day", *(sys.argv[1:] if argv is None else argv)])
        options = {"machine": f"{_MODULE}:machine", "dry_run": arguments.dry_run, "command": command}
        run_steps(chosen, arguments.out, minutes=arguments.minutes, **options)
        results = read_results(arguments.out, STEPS, dry_run=arguments.dry_run)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_text(arguments.out / "summary.md", summary(STEPS, results))
    print(f"summary: {arguments.out / 'summary.md'}")
    passes = [result["status"] == "finished" and all(map(passed, result["rows"])) for result in results.values()]
    return int(not all(passes))


def _list(steps: Sequence[GpuDayStep], arguments: argparse.Namespace) -> None:
    results = read_results(arguments.out, steps, dry_run=arguments.dry_run)
    for step in steps:
        status = results[step.name]["status"] if step.name in results else "not run"
        print(f"{step.name:26} {step.limit_s:4.0f} s  {step.about}: {status}")


if __name__ == "__main__":
    sys.exit(main())
