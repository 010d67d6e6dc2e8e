"""Measure which scorers find wrong labels, and compare them with other methods.

For each case the stages finetune, extract, reduce and filter run on wrong labels, as `dvc repro` runs them, each in a
separate process. Training takes as many steps as `--seconds` allow at its measured speed. Each case has a folder in
`--work`. Then every scorer ranks all images of each folder, in a separate process, and is compared with the truth.
Existing results of stages are kept, so that scorers can run again without training.

    python -m benchmarks.label_noise --data data --params params.yaml --kinds symmetric --rates 0.1 --folds 1 5
    python -m benchmarks.label_noise --data data --labels annotator.csv --variants frozen --weights resnet18.pth
    python -m benchmarks.label_noise --work .work/label_noise --summarize
"""

import argparse
import json
import sys

from benchmarks.label_noise.arguments import parse
from benchmarks.label_noise.running import run_and_score, versions
from benchmarks.label_noise.tables import advantage_rows, heading, scorer_rows, summarize
from benchmarks.printing import print_table
from pipeline.commands.iterate.running import StageFailedError
from pipeline.stages.harness import exit_codes


def main() -> None:
    """Run both phases, or print the summary."""
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
    results = run_and_score(arguments)
    for result in results:
        print(f"\n{heading(result)}")
        if rows := scorer_rows(result):
            print_table(rows)
        if rows := advantage_rows(result):
            print()
            print_table(rows)
    print(json.dumps({**vars(arguments), **versions(), "results": results}, default=str))


if __name__ == "__main__":
    main()
