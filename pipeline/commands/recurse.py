"""`python -m pipeline recurse --network NAME`: filter, train the extractor on what is left, filter again.

Gahlot et al. (2020) leave "using the technique recursively" to future work. Round 0 is what
`dvc repro` has written. In each round after it the extractor is trained on the images that the round
before keeps, and judges all training images, so that images can come back. It ends when what is
suspect has settled, or after the rounds asked for. An interrupted recursion goes on where it stopped;
parameters, images, code or overrides that have changed start it anew.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from pipeline.artifacts.prepared import count_planted, planted_note
from pipeline.commands import command_parser
from pipeline.commands.iteration.processes import StageFailedError, StageProcesses, write_results
from pipeline.commands.iteration.round_dir import RoundsDir, changed_inputs
from pipeline.commands.iteration.rounds import (
    FirstRound,
    compare,
    has_converged,
    iterate,
    read_first_round,
    round_inputs,
)
from pipeline.config.params import Params, load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import stderr_log
from pipeline.stages.harness import exit_codes, file_lock

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
    """The parser of this command."""
    parser = command_parser("recurse", __doc__, "params", "data", "work")
    parser.add_argument("--network", required=True, help="one of `networks` in the parameter file")
    parser.add_argument("--rounds", type=int, default=3, help="the most rounds after round 0 (default: 3)")
    parser.add_argument(
        "--settled",
        type=float,
        default=0.95,
        help="end where two rounds in a row have this Jaccard index of what is suspect, above 0 to 1 (default: 0.95)",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the rounds, write data/recursive/<network>/ and print a table.

    Returns:
        0, or the exit code of a stage that failed. Ends the process as a stage does where the input is
        bad (2) or it is asked to end (75 after SIGTERM, 130 after SIGINT).
    """
    arguments = make_parser().parse_args(argv)
    with exit_codes():
        params = load_params(arguments.params)
        _check(arguments, params)
        data, work = DataPaths(root=arguments.data), WorkPaths(root=arguments.work)
        name = f"recurse@{arguments.network}"
        with file_lock(work.lock(name), name):
            try:
                place = RoundsDir(data=data, work=work, network=arguments.network, finetune=params.finetune)
                lines = _recurse(arguments, params, place)
            except StageFailedError as failed:
                return failed.code
        print("\n".join(lines))
    return 0


def _check(arguments: argparse.Namespace, params: Params) -> None:
    if arguments.network not in params.networks:
        raise InputError(f"--network {arguments.network}: not in {arguments.params}; it has {[*params.networks]}")
    if arguments.rounds < 1:
        raise InputError(f"--rounds {arguments.rounds}: nothing would be trained; give 1 or more")
    if not 0 < arguments.settled <= 1:
        raise InputError(
            f"--settled {arguments.settled:g}: a Jaccard index is above 0 and at most 1; give one like 0.95"
        )


def _recurse(arguments: argparse.Namespace, params: Params, place: RoundsDir) -> list[str]:
    """Returns what to print in the end."""
    network, settle_at = place.network, arguments.settled
    processes = StageProcesses(network)
    with closing(stderr_log(place.work.log(f"recurse@{network}"))) as log, processes.heeding_signals():
        first, inputs = _inputs(params, place)
        copied = place.begin(arguments.params, inputs, log)
        next_round = partial(place.run_round, params=copied, processes=processes, log=log)
        verdicts = iterate(first.verdict, next_round, rounds=arguments.rounds, settle_at=settle_at)
        if changed := changed_inputs(inputs, _inputs(load_params(arguments.params), place)[1]):
            raise InputError(f"{changed}: changed while the rounds ran; run the same command again to start anew")
        write_results(place.data, network, first, verdicts, settle_at)
    rows = compare(verdicts)
    last, agreement = rows[-1]["round"], rows[-1]["jaccard"]
    n_planted = count_planted(place.data)
    return [
        *table([{**row, "seconds": place.seconds(row["round"])} for row in rows]),
        f"settled in round {last}"
        if has_converged(verdicts, settle_at)
        else f"not settled: a Jaccard index of {agreement:.3f} is below {settle_at:g}; --rounds {last + 1} goes on",
        *([] if n_planted is None else [planted_note(n_planted)]),
        f"to use round {last}: cp {place.data.recursive_overrides(network)} {place.data.overrides} && dvc repro",
    ]


def _inputs(params: Params, place: RoundsDir) -> tuple[FirstRound, dict[str, Any]]:
    """Round 0, and all that decides the next ones."""
    first = read_first_round(params, place.data, place.network)
    return first, round_inputs(params, place.data, place.network, first.verdict)


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A heading and one line a round, from rows of `compare` with `seconds` added."""
    lines = [list(_COLUMNS)]
    for row in rows:
        values = ((row[key], form) for key, form in _COLUMNS.values())
        lines.append(["" if value is None else format(value, form) for value, form in values])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(f"{text:>{width}}" for text, width in zip(line, widths, strict=True))
