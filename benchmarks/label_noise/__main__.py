"""Which scorer finds wrong labels, and how much better than another?

For each case a network is trained on wrong labels, for as many steps as `--seconds` allow by its
measured speed; its features, probabilities and map are kept in `--work`, one folder a case. Then
every scorer ranks the images of each folder, in a process of its own, and is held against the truth.
What is in the folder is not made again, so that scorers can be run anew at no cost.

    python -m benchmarks.label_noise --data data --params params.yaml --kinds symmetric --rates 0.1 0.2
    python -m benchmarks.label_noise --data data --labels annotator.csv
"""

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray

from benchmarks.label_noise.cases import KINDS, Case, cases_of, labels_of, load_images_and_truth
from benchmarks.label_noise.extractor import Extractor, finish_case, make_extractor, reference_probabilities
from benchmarks.label_noise.planning import with_plan
from benchmarks.label_noise.scoring import SCORERS, check_scorers, score_case, table_rows
from benchmarks.measuring import print_table
from pipeline import distributed
from pipeline.artifacts.prepared import load_prepared
from pipeline.config.params import Params, load_params
from pipeline.distributed import Ranks
from pipeline.paths import DataPaths
from pipeline.run_log import standard_log
from pipeline.stages.harness import exit_codes


def train_and_extract(arguments: argparse.Namespace, params: Params, ranks: Ranks) -> list[Case]:
    """Phase (a): fill the folder of every case."""
    data = load_prepared(DataPaths(root=arguments.data), folder=None)
    images = load_images_and_truth(arguments, data)
    cases = list(cases_of(arguments.kinds, arguments.rates, images))
    extractor = make_extractor(params, data, images, ranks, standard_log(None))
    extractor = with_plan(extractor, arguments)
    for case in cases:
        finish_case(
            extractor,
            arguments.work / case.name,
            partial(_labels, case, extractor, arguments),
            {"kind": case.kind, "rate": case.rate, "seed": arguments.seed},
        )
    return cases


def _labels(case: Case, extractor: Extractor, arguments: argparse.Namespace) -> NDArray[np.int64]:
    by_instance = case.kind == "instance"
    probabilities = reference_probabilities(extractor, arguments.work / "reference") if by_instance else None
    return labels_of(case, extractor.images, seed=arguments.seed, probabilities=probabilities)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with prepare/")
    parser.add_argument(
        "--params", type=Path, default=Path("params.yaml"), help="its finetune, extract, reduce, filter"
    )
    parser.add_argument("--work", type=Path, default=Path(".work/label_noise"), help="folder of the cases")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="of noise; all, unless --labels or --truth is given")
    parser.add_argument("--rates", type=share, nargs="+", default=[0.1], help="shares of wrong labels")
    parser.add_argument(
        "--labels", type=Path, help="CSV path,label: labels to audit, where they are not the prepared ones"
    )
    parser.add_argument("--truth", type=Path, help="CSV path,label: true labels, where they are not the prepared ones")
    parser.add_argument("--images", type=positive, help="training images, the first of a fixed order; default: all")
    parser.add_argument("--seconds", type=float, default=900.0, help="training time of a case")
    parser.add_argument("--scorers", nargs="+", choices=tuple(SCORERS), default=tuple(SCORERS))
    parser.add_argument(
        "--reference", choices=tuple(SCORERS), default="self_confidence", help="others are compared with it"
    )
    parser.add_argument("--resamples", type=positive, default=1000, help="of the bootstrap")
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    return parser.parse_args()


def share(text: str) -> float:
    """Above 0 and below 1."""
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no share above 0 and below 1")
    return value


def positive(text: str) -> int:
    """A count of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def main() -> None:
    """Both phases; print the table and one line of JSON."""
    arguments = parse()
    with exit_codes():
        check_scorers(arguments.scorers, arguments.reference)
        params = load_params(arguments.params)
        with distributed.session(params.finetune.threads_per_worker) as ranks:
            cases = train_and_extract(arguments, params, ranks)
            machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "device": str(ranks.device)}
        results = [
            score_case(
                arguments.work / case.name,
                arguments.scorers,
                reference=arguments.reference,
                min_samples=params.filter.min_samples,
                resamples=arguments.resamples,
            )
            for case in cases
        ]
    for found in results:
        print(
            f"\n{found['case']}: {found['n_wrong']} of {found['n']} labels are wrong; {found['epochs']:.2f} epochs, "
            f"top-1 {found['test_top1']:.4f} on the test images; {found['probabilities']} probabilities"
        )
        print_table(table_rows(found))
    versions = {"numpy": np.__version__, "scikit-learn": sklearn.__version__, **machine}
    print(json.dumps({**vars(arguments), **versions, "results": results}, default=str))


if __name__ == "__main__":
    main()
