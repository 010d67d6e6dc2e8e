"""Train on what three filters leave of images with planted wrong labels: the default, the paper's DBSCAN, the truth.

All filters read the features of one extractor of presets/planted-noise.yaml. The default also has the arms `random` and
`relabeled`. The runs of the arm `full` are trained once: all studies share one ledger. After a kill the same command
goes on. The table has each arm's top-1 and its difference from `full`, paired by seed. The plans are in the ledger
before the first run. The number of threads is part of a run's key, so resume with the same one.

    OMP_NUM_THREADS=1 nice -n 19 python -m benchmarks.planted_filters --images cifar10-jpeg.tar.xz
    python -m benchmarks.planted_filters --images cifar10-jpeg.tar.xz --summarize
"""

import argparse
import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from batchsieve import compare_runs
from benchmarks.label_noise.folders import hard_link
from benchmarks.oracle_overrides import oracle_overrides
from benchmarks.printing import Row, print_table
from pipeline.artifacts.files import atomic_path
from pipeline.artifacts.overrides import write_overrides
from pipeline.artifacts.prepared import read_true_labels
from pipeline.artifacts.tables import read_parquet
from pipeline.commands.iterate.running import StageFailedError, StageProcesses
from pipeline.config.params import Params, check_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths
from pipeline.stages.harness import exit_codes

_SHARED = ("prepare", "finetune", "extract", "reduce")
_DEFAULT = "label_odds"

FILTERS: Mapping[str, Mapping[str, Any]] = {
    _DEFAULT: {},
    "dbscan": {
        "scorer": {"name": "dbscan", "space": "embedding", "min_samples": 5},
        "plan": {
            "question": "With a fifth of the labels wrong, does training without the images that the paper's DBSCAN "
            "drops raise top-1?",
            "hypotheses": ["Filtered is above full.", "Secondary; it is below filtered of label_odds."],
        },
    },
    "truth": {
        "plan": {
            "question": "With a fifth of the labels wrong, how much does training without exactly these images raise "
            "top-1?",
            "hypotheses": ["Filtered is above full, by the largest possible gain."],
        },
    },
}
"""Study -> what differs from the preset; `truth` has the decisions of `benchmarks.oracle_overrides`."""


def study_tree(preset: Mapping[str, Any], name: str, archive: Path) -> dict[str, Any]:
    """Return the parameters of one filter: its study alone, on the images of an archive.

    Raises:
        InputError: they are not valid.
    """
    tree: dict[str, Any] = copy.deepcopy(dict(preset))
    tree["prepare"] |= {"dataset": "image_folder", "path": str(archive)}
    tree["prepare"]["plant_label_noise"] |= {"on_own_data": True}
    changes, study = FILTERS[name], tree["studies"].pop(_DEFAULT)
    if name != _DEFAULT:
        study = {key: value for key, value in study.items() if key != "relabel_above"} | {"arms": ["full", "filtered"]}
        study["plan"] = {**study["plan"], **changes["plan"]}
    if "scorer" in changes:
        tree["filter"]["scorer"] = dict(changes["scorer"])
    tree["studies"] = {name: study}
    check_params(tree, source=f"--params for {name}")
    return tree


def run_filter(name: str, params: Path, work: Path) -> None:
    """Run the unfinished stages of one filter; the others share what the default's first stages wrote.

    Raises:
        StageFailedError: a stage failed; it has printed the reason.
    """
    data, first = _data(work, name), _data(work, _DEFAULT)
    network = _load(params).networks[0]
    if name != _DEFAULT:
        for file in (file for stage in _SHARED for file in (first.root / stage).rglob("*") if file.is_file()):
            if not (target := data.root / file.relative_to(first.root)).exists():
                hard_link(file, target)
    # The default's first stages write into this folder, so decisions are written before them.
    if not data.overrides.exists() and name != "truth":
        write_overrides(data.overrides, [])
    for stage in (*_SHARED, "filter", "train", "report"):
        item = {"prepare": None, "report": None, "train": name}.get(stage, network)
        if not data.provenance(stage, item).exists():
            if stage == "filter" and name == "truth":
                write_overrides(data.overrides, oracle_overrides(data))
            print(f"{name}: {stage}", flush=True)
            processes = StageProcesses(item, item="study" if stage == "train" else "network")
            with processes.forwarding_signals():
                processes.run(stage, params, data, WorkPaths(root=work / "work"))


def arm_accuracies(data: DataPaths, study: str) -> dict[str, dict[int, float]]:
    """Return arm -> seed -> top-1, 0 to 1, of the study's runs."""
    arms: dict[str, dict[int, float]] = {}
    for run in read_parquet(data.runs(study), ["arm", "seed", "top1"]).to_pylist():
        arms.setdefault(run["arm"], {})[run["seed"]] = run["top1"]
    return arms


def table_rows(
    accuracies: Mapping[str, Mapping[str, Mapping[int, float]]], left: Mapping[str, str], margin: float
) -> Iterator[Row]:
    """Yield a row for each study and arm: mean top-1, and the paired difference from `full` with its verdict.

    Args:
        accuracies: study -> arm -> seed -> top-1, 0 to 1.
        left: study -> the wrong labels that its filter leaves.
        margin: of top-1, 0 to 1.
    """
    for study, arms in accuracies.items():
        for arm, values in arms.items():
            row: Row = {
                "filter": study,
                "arm": arm,
                "wrong_left": left[study] if arm == "filtered" else "",
                "n": len(values),
                "top1": f"{100 * sum(values.values()) / len(values):.2f} %",
            }
            if arm == "full" or len(values) < 2:
                yield {**row, "minus_full": "", "interval": "", "verdict": ""}
                continue
            result = compare_runs(dict(values), dict(arms["full"]), margin=margin)
            low, high = result.interval or (result.estimate, result.estimate)
            yield {
                **row,
                "minus_full": f"{100 * result.estimate:+.2f}",
                "interval": f"{100 * low:+.2f} to {100 * high:+.2f}",
                "verdict": result.outcome,
            }


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, and print the table of the finished studies."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.planted_filters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--images", type=Path, required=True, help="archive or folder of train/ and test/ by class")
    parser.add_argument(
        "--params", type=Path, default=Path("presets/planted-noise.yaml"), help="(default: %(default)s)"
    )
    parser.add_argument("--work", type=Path, default=Path(".work/planted_filters"), help="folder of data and runs")
    parser.add_argument("--summarize", action="store_true", help="print the table of finished studies; run nothing")
    arguments = parser.parse_args(argv)
    with exit_codes():
        preset = YAML(typ="safe", pure=True).load(arguments.params)
        trees = {name: study_tree(preset, name, arguments.images.absolute()) for name in FILTERS}
        if not arguments.summarize:
            try:
                _run(arguments.work, trees)
            except StageFailedError as error:
                sys.exit(error.code)
        _summarize(arguments.work, 0.01 * preset["report"]["margin"])


def _run(work: Path, trees: Mapping[str, dict[str, Any]]) -> None:
    for name, tree in trees.items():
        file = work / name / "params.yaml"
        if file.exists() and YAML(typ="safe", pure=True).load(file) != tree:
            raise InputError(f"{file}: is of other parameters; choose another --work, or delete that folder")
        with atomic_path(file) as temporary, temporary.open("w", encoding="utf-8") as text:
            YAML(typ="safe", pure=True).dump(tree, text)
        run_filter(name, file, work)


def _summarize(work: Path, margin: float) -> None:
    done = [name for name in FILTERS if _data(work, name).provenance("train", name).exists()]
    if not done:
        raise InputError(f"--work: {work} has no finished study; run without --summarize first")
    accuracies = {name: arm_accuracies(_data(work, name), name) for name in done}
    left = {name: _wrong_left(_data(work, name), _load(work / name / "params.yaml").networks[0]) for name in done}
    print_table(list(table_rows(accuracies, left, margin)))
    print(f"\ndifferences in percentage points; finished: {', '.join(done)}")
    if missing := [name for name in FILTERS if name not in done]:
        print(f"not run: {', '.join(missing)}")


def _wrong_left(data: DataPaths, network: str) -> str:
    """Return how many of the kept images have a wrong label."""
    truth = read_true_labels(data)
    assert truth is not None
    points = read_parquet(data.points(network), ["keep", "label"])
    keep, labels = points["keep"].to_numpy(), points["label"].to_numpy()
    return f"{int((keep & (labels != truth)).sum())} of {int(keep.sum())}"


def _data(work: Path, name: str) -> DataPaths:
    return DataPaths(root=work / name / "data")


def _load(file: Path) -> Params:
    return check_params(YAML(typ="safe", pure=True).load(file), source=str(file))


if __name__ == "__main__":
    main()
