"""How long every case trains: decided once, by the speed alone."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.label_noise.extractor import Extractor
from pipeline.artifacts.json_file import read_json, write_json
from pipeline.artifacts.prepared import digest_of
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.errors import InputError
from pipeline.paths import DataPaths

# The difference of two lengths must be this long to tell the speed from noise.
_LEAST_TIMED_S = 1.0


def with_plan(extractor: Extractor, arguments: argparse.Namespace) -> Extractor:
    """With as many steps as take `--seconds`; plan.json in `--work` keeps the number for all cases and runs.

    Raises:
        InputError: `--work` holds a plan of other data or arguments.
    """
    file = arguments.work / "plan.json"
    identity = _identity(extractor, arguments)
    if file.exists():
        steps = _steps_of(file, identity)
        print(f"plan: {steps} steps for every case, as {file} has it", flush=True)
        return extractor.with_steps(steps)
    each = seconds_per_step(extractor.seconds)
    steps = max(1, int(arguments.seconds / each))
    batch, n = extractor.settings.batch_size, len(extractor.images.truth)
    print(
        f"plan: {each:.4f} s for a step of {batch} images, so {arguments.seconds:g} s make {steps} steps, "
        f"{steps * batch / n:.2f} epochs of {n} images, for every case",
        flush=True,
    )
    write_json(file, {**identity, "steps": steps})
    return extractor.with_steps(steps)


def seconds_per_step(run: Callable[[int], float]) -> float:
    """From the seconds that runs of two lengths take, which leaves out what is done once a run."""
    run(1)
    steps = 4
    while (extra := run(1 + steps) - run(1)) < _LEAST_TIMED_S:
        steps *= 4
    return extra / steps


def _identity(extractor: Extractor, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the folders of all cases have in common; their own kinds and rates are in their names."""
    files = {key: getattr(arguments, key) for key in ("labels", "truth")}
    params = extractor.params
    identity = {
        "data": digest_of(DataPaths(root=arguments.data)),
        **{key: sha256_of_file(file) if file else None for key, file in files.items()},
        "images": len(extractor.images.truth),
        "seconds": arguments.seconds,
        "seed": arguments.seed,
        "network": params.networks[0],
        # The plan has a budget and a schedule of its own.
        "finetune": params.finetune.model_dump(mode="json", exclude={"budget", "schedule"}),
        "reduce": params.reduce.model_dump(mode="json"),
    }
    return dict(json.loads(json.dumps(identity)))


def _steps_of(file: Path, identity: dict[str, Any]) -> int:
    plan = read_json(file)
    different = [key for key in identity if key not in plan or plan[key] != identity[key]]
    if different:
        raise InputError(f"{file}: is of another {different[0]}; choose another --work, or delete that folder")
    return int(plan["steps"])
