"""Tables of audits: run each cell once by `benchmarks.label_noise`, keep its result, and summarize what is finished.

A cell is one noise, one seed and one training of the extractor. It can be killed at any moment: the same command goes
on where it was.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from benchmarks.label_noise.arguments import parse
from benchmarks.label_noise.detection import MEASURES
from benchmarks.label_noise.own_process import in_own_process
from benchmarks.label_noise.running import run_and_score, versions
from benchmarks.label_noise.tables import TITLES
from benchmarks.printing import Row
from pipeline.artifacts.files import atomic_path, read_json, write_json
from pipeline.config.params import Params, check_params
from pipeline.errors import InputError
from pipeline.stats.formatting import MISSING

_MEASURED_TIMES = 3


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One audit of a table.

    Attributes:
        noise: the labels to audit, as the table names them.
        arm: the training of the extractor, as the table names it.
        seed: of noise and training.
        options: of `benchmarks.label_noise`; they give one case.
    """

    noise: str
    arm: str
    seed: int
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of its file of results."""
        return f"{self.noise}-{self.arm}-seed{self.seed}"

    def result(self, work: Path) -> Path:
        """Return the file of its results."""
        return work / "results" / f"{self.name}.json"


def run_cells(cells: Sequence[Cell], work: Path) -> None:
    """Run the cells without results, in their order.

    Raises:
        InputError: as `benchmarks.label_noise`.
        StageFailedError: a stage failed; it has printed the reason.
    """
    for number, cell in enumerate(cells, start=1):
        if not cell.result(work).exists():
            print(f"cell {number} of {len(cells)}: {cell.name}", flush=True)
            (result,) = run_and_score(parse("", cell.options))
            identity = {"noise": cell.noise, "arm": cell.arm, "seed": cell.seed}
            write_json(cell.result(work), {**identity, "versions": versions(), **result})


def read_results(cells: Iterable[Cell], work: Path) -> list[dict[str, Any]]:
    """Return the results of the finished cells, in their order."""
    return [read_json(cell.result(work)) for cell in cells if cell.result(work).exists()]


def table_rows(results: Sequence[Mapping[str, Any]], scorers: Sequence[str]) -> list[Row]:
    """Return a row for each noise, arm and scorer: mean and extremes of each measure over the seeds.

    Results without scorers, of clean labels, have a row with the accuracy alone.
    """
    rows: list[Row] = []
    for noise, arm in dict.fromkeys((result["noise"], result["arm"]) for result in results):
        mine = [result for result in results if (result["noise"], result["arm"]) == (noise, arm)]
        top1 = format_spread([result["test_top1"] for result in mine])
        if not any(result["scorers"] for result in mine):
            nothing = dict.fromkeys(TITLES.values(), MISSING)
            rows.append({"noise": noise, "arm": arm, "scorer": MISSING, **nothing, "top1": top1, "n": len(mine)})
        for scorer in scorers:
            found = [result["scorers"][scorer]["measures"] for result in mine if scorer in result["scorers"]]
            if found:
                columns = {
                    TITLES[name]: format_spread([measures[name]["value"] for measures in found]) for name in MEASURES
                }
                rows.append({"noise": noise, "arm": arm, "scorer": scorer, **columns, "top1": top1, "n": len(found)})
    return rows


def format_spread(values: Sequence[float]) -> str:
    """Return the mean, with the extremes if there is more than one value."""
    if len(values) == 1:
        return f"{values[0]:.4f}"
    return f"{np.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def write_cell_params(file: Path, params: Params, *, network: str, seed: int) -> Path:
    """Write the parameters with one network and the seed of its training; returns `file`."""
    tree = params.model_dump(mode="json", exclude_unset=True)
    changes = {"filter_network": network, "needs": f"filter/{network}"}
    tree = {
        **tree,
        "networks": [network],
        "finetune": {**tree["finetune"], "seed": seed},
        "studies": {name: {**study, **changes} for name, study in tree["studies"].items()},
    }
    check_params(tree, source=str(file))
    with atomic_path(file) as temporary, temporary.open("w", encoding="utf-8") as text:
        YAML(typ="safe", pure=True).dump(tree, text)
    return file


def measured_speeds(
    file: Path, networks: Mapping[str, Params], data: Path, identity: Mapping[str, Any]
) -> dict[str, float]:
    """Return the seconds per step of each network: measured once, then read from `file`.

    Each is the median of three, taken in turn, so that other work on the machine slows all networks alike.

    Args:
        networks: name -> the parameters of its training, whose first network it is.
        data: folder with prepare/.
        identity: what the cells share, with `clock`; kept in `file`.

    Raises:
        InputError: `file` is of another identity.
    """
    stored = read_json(file) if file.exists() else dict(identity)
    for key, value in identity.items():
        if stored.get(key) != value:
            raise InputError(f"{file}: is of another {key}: {stored.get(key)}, not {value}; choose another --work")
    speeds: dict[str, float] = stored.get("seconds_per_step", {})
    if missing := [name for name in networks if name not in speeds]:
        # Imported here, since torch takes seconds; the measured processes import it themselves.
        from benchmarks.label_noise.speed import seconds_per_step

        rounds = [
            {name: in_own_process(seconds_per_step, networks[name], data, identity["clock"])[0] for name in missing}
            for _ in range(_MEASURED_TIMES)
        ]
        speeds |= {name: median(taken[name] for taken in rounds) for name in missing}
        write_json(file, {**identity, "seconds_per_step": speeds})
    return speeds
