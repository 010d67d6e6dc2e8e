"""Which scorer finds wrong labels, and how much better than what others would do?

For each case the stages finetune, extract, reduce and filter are run on wrong labels, as `dvc repro`
would run them, each in a process of its own; training takes as many steps as `--seconds` allow by
its measured speed. A case has a folder in `--work`. Then every scorer ranks all images of each
folder, in a process of its own, and is held against the truth. What is in a folder is not made
again, so that scorers can be run anew at no cost.

    python -m benchmarks.label_noise --data data --params params.yaml --kinds symmetric --rates 0.1 --folds 1 5
    python -m benchmarks.label_noise --data data --labels annotator.csv --variants frozen --weights resnet18.pth
    python -m benchmarks.label_noise --work .work/label_noise --summarize
"""

import argparse
import json
import sys
from importlib import metadata
from typing import Any

from benchmarks.label_noise.arguments import parse
from benchmarks.label_noise.choices import check_names, scorers_of
from benchmarks.label_noise.running import run_cases
from benchmarks.label_noise.scoring import score_case
from benchmarks.label_noise.tables import advantage_rows, heading, scorer_rows, summarize
from benchmarks.printing import print_table
from pipeline.commands.iteration.processes import StageFailedError
from pipeline.config.params import load_params
from pipeline.stages.harness import exit_codes


def main() -> None:
    """Both phases, or the summary."""
    with exit_codes():
        arguments = parse(str(__doc__))
        if arguments.summarize:
            if rows := summarize(arguments.work):
                print_table(rows)
            print(f"summary: {arguments.work / 'summary.json'}")
            return
        try:
            _run(arguments)
        except StageFailedError as error:
            sys.exit(error.code)


def _run(arguments: argparse.Namespace) -> None:
    """Train, score, print the tables and one line of JSON."""
    neighbours, frozen = load_params(arguments.params).reduce.n_neighbors, "frozen" in arguments.variants
    names = scorers_of(arguments.scorers, frozen=frozen)
    check_names(names, arguments.default, neighbours=neighbours, frozen=frozen)
    results = []
    for case in run_cases(arguments):
        names = scorers_of(arguments.scorers, frozen=case.variant == "frozen")
        folder = arguments.work / case.name
        results.append(score_case(folder, names, default=arguments.default, resamples=arguments.resamples))
    for found in results:
        print(f"\n{heading(found)}")
        print_table(scorer_rows(found))
        if rows := advantage_rows(found):
            print()
            print_table(rows)
    print(json.dumps({**vars(arguments), **_versions(), "results": results}, default=str))


def _versions() -> dict[str, Any]:
    packages = ("numpy", "scikit-learn", "torch")
    return {package: metadata.version(package) for package in packages}


if __name__ == "__main__":
    main()
