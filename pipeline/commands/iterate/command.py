"""`python -m pipeline iterate --network NAME`: filter, train the extractor on the kept images, filter again.

Gahlot et al. (2020) leave "using the technique recursively" to future work. Round 0 is what
`dvc repro` wrote. Each later round trains the extractor on the images that the previous round
kept, then scores all training images, so that dropped images can return. With --folds 2 or more, no
image is scored by a network that trained on it, kept or not. The rounds stop when the set of suspect
images converges, or after --rounds. Run the same command again to resume. Changed parameters, images,
code or overrides restart the rounds.
"""

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.prepared import count_planted, planted_note
from pipeline.commands import command_parser
from pipeline.commands.iterate.rounds import (
    FirstRound,
    RoundResult,
    compare,
    has_converged,
    iterate,
    read_first_round,
    round_inputs,
)
from pipeline.commands.iterate.running import (
    RoundsDir,
    StageFailedError,
    StageProcesses,
    changed_inputs,
    write_results,
)
from pipeline.config.filter import scorer_names
from pipeline.config.params import Params, load_params
from pipeline.errors import InputError
from pipeline.locks import file_lock
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import stderr_log
from pipeline.stages.harness import exit_codes
from pipeline.stats.formatting import aligned_lines

# Scorers of what training records about the images that it trains on.
_RECORDED_IN_SAMPLE = ("aum", "forgetting", "mean_confidence")
# Heading -> key and format.
_COLUMNS = {
    "round": ("round", "d"),
    "kept": ("n_kept", ",d"),
    "suspect": ("n_noise", ",d"),
    "dropped": ("n_dropped", ",d"),
    "Jaccard": ("jaccard", ".3f"),
    "came back": ("n_back", ",d"),
    "newly dropped": ("n_newly_dropped", ",d"),
    "test top-1": ("top1", ".4f"),
    "seconds": ("seconds", ",.0f"),
}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("iterate", __doc__, "params", "data", "work")
    parser.add_argument("--network", required=True, help="one of `networks` in the parameter file")
    parser.add_argument("--rounds", type=int, default=3, help="maximum number of rounds after round 0 (default: 3)")
    parser.add_argument(
        "--min-jaccard",
        type=float,
        default=0.95,
        help="stop when two successive rounds reach this Jaccard index of suspect images, in (0, 1] (default: 0.95)",
    )
    parser.add_argument(
        "--folds",
        type=int,
        default=1,
        help="folds of a round's extractor, if `finetune.folds` is less (default: 1, which scores the kept images in "
        "sample and the dropped ones out of sample; with 2 or more all are out of sample)",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the rounds, write data/recursive/<network>/ and print a table.

    Returns:
        0, or the exit code of a failed stage. Exits with 2 on bad input, 75 after SIGTERM and 130 after SIGINT.
    """
    arguments = make_parser().parse_args(argv)
    with exit_codes():
        params = load_params(arguments.params)
        _check(arguments, params)
        data, work = DataPaths(root=arguments.data), WorkPaths(root=arguments.work)
        name = f"iterate@{arguments.network}"
        with file_lock(work.lock(name), name):
            try:
                folds = max(params.finetune.folds, arguments.folds)
                finetune = params.finetune.model_copy(update={"folds": folds})
                rounds_dir = RoundsDir(data=data, work=work, network=arguments.network, finetune=finetune)
                lines = _run_rounds(arguments, params, rounds_dir)
            except StageFailedError as failed:
                return failed.code
        print("\n".join(lines))
    return 0


def _check(arguments: argparse.Namespace, params: Params) -> None:
    if arguments.network not in params.networks:
        raise InputError(f"--network {arguments.network}: not in {arguments.params}; it has {[*params.networks]}")
    if arguments.rounds < 1:
        raise InputError(f"--rounds {arguments.rounds}: nothing would be trained; use 1 or more")
    if arguments.folds < 1:
        raise InputError(f"--folds {arguments.folds}: not a number of folds; use 2 or more, or 1 to score in sample")
    in_sample = [name for name in scorer_names(params.filter.scorer) if name in _RECORDED_IN_SAMPLE]
    if max(arguments.folds, params.finetune.folds) > 1 and in_sample:
        raise InputError(
            f"filter.scorer: {in_sample[0]} is recorded in training, and dropped images have no record, so that they "
            "cannot be compared; use label_odds"
        )
    if not 0 < arguments.min_jaccard <= 1:
        raise InputError(
            f"--min-jaccard {arguments.min_jaccard:g}: a Jaccard index is above 0 and at most 1; use one like 0.95"
        )


def _run_rounds(arguments: argparse.Namespace, params: Params, rounds_dir: RoundsDir) -> list[str]:
    """Run the rounds and return the lines to print."""
    network, min_jaccard = rounds_dir.network, arguments.min_jaccard
    processes = StageProcesses(network)
    with closing(stderr_log(rounds_dir.work.log(f"iterate@{network}"))) as log, processes.forwarding_signals():
        first, inputs = _inputs(params, rounds_dir)
        seconds = {0: rounds_dir.seconds(0, log.info)}
        copied = rounds_dir.begin(arguments.params, inputs, log)

        def next_round(number: int, keep: NDArray[np.bool_]) -> RoundResult:
            result = rounds_dir.run_round(number, keep, params=copied, processes=processes, log=log)
            seconds[number] = rounds_dir.seconds(number, log.info)
            log.info(round_line(number, arguments.rounds, seconds[number]))
            return result

        results = iterate(first.result, next_round, rounds=arguments.rounds, min_jaccard=min_jaccard)
        if changed := changed_inputs(inputs, _inputs(load_params(arguments.params), rounds_dir)[1]):
            raise InputError(f"{changed}: changed while the rounds ran; run the same command again to start over")
        write_results(rounds_dir.data, network, first, results, min_jaccard)
    rows = compare(results)
    last, agreement = rows[-1]["round"], rows[-1]["jaccard"]
    data = rounds_dir.data
    n_planted = count_planted(data)
    copy = shlex.join(["cp", str(data.recursive_overrides(network)), str(data.overrides)])
    return [
        *table([{**row, "seconds": seconds[row["round"]]} for row in rows]),
        f"converged in round {last}"
        if has_converged(results, min_jaccard)
        else f"not converged: Jaccard index {agreement:.3f} is below {min_jaccard:g}; try --rounds {last + 1}",
        *([] if n_planted is None else [planted_note(n_planted)]),
        f"to use round {last}: {copy} && dvc repro",
    ]


def round_line(number: int, rounds: int, seconds: float) -> str:
    """Return how many of at most `rounds` rounds have ended, and how long the others take if each takes `seconds`."""
    line = f"round {number} of at most {rounds}: {seconds:.0f} s"
    return f"{line}, at most {(rounds - number) * seconds:.0f} s left" if number < rounds else line


def _inputs(params: Params, rounds_dir: RoundsDir) -> tuple[FirstRound, dict[str, Any]]:
    """Return round 0 and all inputs of the next rounds."""
    first = read_first_round(params, rounds_dir.data, rounds_dir.network)
    inputs = round_inputs(params, rounds_dir.data, rounds_dir.network, first.result)
    return first, {**inputs, "--folds": rounds_dir.finetune.folds}


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a heading and one line per round, from rows of `compare` with `seconds` added."""
    lines = [list(_COLUMNS)]
    for row in rows:
        values = ((row[key], spec) for key, spec in _COLUMNS.values())
        lines.append(["" if value is None else format(value, spec) for value, spec in values])
    yield from aligned_lines(lines)
