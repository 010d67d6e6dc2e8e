"""`iterate`: stopping, the table of the rounds, and the overrides that it writes."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.artifacts.files import write_json
from pipeline.artifacts.overrides import Override, read_overrides
from pipeline.commands.iterate.command import round_line, table
from pipeline.commands.iterate.rounds import FirstRound, RoundResult, compare, has_converged, iterate
from pipeline.commands.iterate.running import decisions, write_results
from pipeline.paths import DataPaths

_IMAGES = 8
_NOISE = st.lists(st.booleans(), min_size=_IMAGES, max_size=_IMAGES).map(np.array)
_BY_HAND = st.dictionaries(st.integers(0, _IMAGES - 1), st.sampled_from(["keep", "drop"]))


def _verdict(noise: NDArray[np.bool_], by_hand: dict[int, str] | None = None) -> RoundResult:
    keep = ~noise
    for row, decision in (by_hand or {}).items():
        keep[row] = decision == "keep"
    return RoundResult(is_noise=noise, keep=keep, top1=0.5)


def _noise(*rows: int) -> NDArray[np.bool_]:
    return np.isin(np.arange(_IMAGES), rows)


def _run(noises: Sequence[NDArray[np.bool_]], rounds: int, min_jaccard: float) -> list[RoundResult]:
    """Run rounds whose filters return `noises`."""
    verdicts = [_verdict(noise) for noise in noises]

    def answer(number: int, keep: NDArray[np.bool_]) -> RoundResult:
        assert np.array_equal(keep, verdicts[number - 1].keep)
        return verdicts[number]

    return iterate(verdicts[0], answer, rounds=rounds, min_jaccard=min_jaccard)


def test_two_rounds_that_agree_are_the_last() -> None:
    noises = [_noise(0, 1), _noise(1, 2), _noise(1, 2), _noise(3)]
    assert len(_run(noises, rounds=3, min_jaccard=0.95)) == 3


def test_agreement_is_on_what_goes_and_just_enough_is_enough() -> None:
    noises = [_noise(0, 1, 2), _noise(0, 1, 2, 3), _noise(5)]
    assert len(_run(noises, rounds=2, min_jaccard=0.75)) == 2
    assert len(_run(noises, rounds=2, min_jaccard=0.76)) == 3


@given(noises=st.lists(_NOISE, min_size=5, max_size=5), rounds=st.integers(1, 4), min_jaccard=st.floats(0.01, 1))
def test_it_stops_at_the_first_agreement_or_the_requested_round(
    noises: list[NDArray[np.bool_]], rounds: int, min_jaccard: float
) -> None:
    verdicts = _run(noises, rounds, min_jaccard)
    ran = len(verdicts) - 1
    assert ran == rounds or has_converged(verdicts, min_jaccard)
    assert 1 <= ran <= rounds
    assert not any(has_converged(verdicts[: number + 1], min_jaccard) for number in range(1, ran))


@given(noises=st.lists(_NOISE, min_size=2, max_size=4), by_hand=_BY_HAND)
def test_counts_add_up(noises: list[NDArray[np.bool_]], by_hand: dict[int, str]) -> None:
    rows = compare([_verdict(noise, by_hand) for noise in noises])
    for before, now in itertools.pairwise(rows):
        assert now["n_kept"] == before["n_kept"] + now["n_back"] - now["n_newly_dropped"]
    assert all(row["n_kept"] + row["n_dropped"] == _IMAGES for row in rows)


def test_rows_of_rounds_by_hand() -> None:
    first, second = compare([_verdict(_noise(0, 1, 2)), _verdict(_noise(2, 3))])
    assert first == {
        "round": 0, "n_kept": 5, "n_noise": 3, "n_dropped": 3, "top1": 0.5,
        "jaccard": None, "n_back": None, "n_newly_dropped": None,
    }  # fmt: skip
    assert (second["jaccard"], second["n_back"], second["n_newly_dropped"]) == (0.25, 2, 1)
    lines = list(table([{**row, "seconds": 1234.5} for row in (first, second)]))
    assert [line.split() for line in lines[1:]] == [
        ["0", "5", "3", "3", "0.5000", "1,234"],
        ["1", "6", "2", "2", "0.250", "2", "1", "0.5000", "1,234"],
    ]
    assert len({len(line) for line in lines}) == 1


@given(noises=st.lists(_NOISE, min_size=2, max_size=4), people=_BY_HAND)
def test_decisions_turn_round_0_into_the_last_and_obey_people(
    noises: list[NDArray[np.bool_]], people: dict[int, str]
) -> None:
    paths = [f"{row}.png" for row in range(_IMAGES)]
    own = [
        Override(path=paths[row], sha256="aa", decision=decision, note="seen", timestamp="2026-01-01", line=row)
        for row, decision in people.items()
    ]
    verdicts = [_verdict(noise, people) for noise in noises]
    first = FirstRound(result=verdicts[0], paths=paths, sha256=["aa"] * _IMAGES, overrides=own)
    decided = decisions(first, verdicts)
    assert decided[: len(own)] == own
    assert len({override.path for override in decided}) == len(decided)
    assert {override.note for override in decided[len(own) :]} <= {f"recursive filter, round {len(noises) - 1}"}
    rows = {paths.index(override.path): override.decision for override in decided}
    assert np.array_equal(_verdict(noises[0], rows).keep, verdicts[-1].keep)


def test_decisions_on_planted_labels_say_so(tmp_path: Path) -> None:
    verdicts = [_verdict(_noise(0)), _verdict(_noise(1))]
    names = [f"{row}.png" for row in range(_IMAGES)]
    first = FirstRound(result=verdicts[0], paths=names, sha256=["aa"] * _IMAGES, overrides=[])
    data = DataPaths(root=tmp_path)
    for metrics, suffix in (({}, ""), ({"n_planted": 1440}, "; labels changed on purpose: 1,440")):
        write_json(data.prepare_metrics, metrics)
        write_results(data, "resnet18", first, verdicts, 0.95)
        notes = {override.note for override in read_overrides(data.recursive_overrides("resnet18"))}
        assert notes == {f"recursive filter, round 1{suffix}"}


@pytest.mark.parametrize(("number", "numbers"), [(1, [1, 3, 12, 25]), (3, [3, 3, 12])])
def test_a_line_after_each_round_has_the_longest_time_left(number: int, numbers: list[int]) -> None:
    assert [int(word) for word in re.findall(r"\d+", round_line(number, 3, 12.4))] == numbers
