"""How a ratio is worded: what counts, and on what it is conditional."""

from dataclasses import asdict

import pytest
from made_up_runs import Draws, made_draws, made_run

from pipeline.reporting.ratio_wording import ratio_sentence, unadjusted_sentence
from pipeline.stats.ratios import Ratio, ratios
from pipeline.stats.runs import Run

_CONDITION = "conditional on this one draw of the filter"


def _runs(draws: int) -> list[Run]:
    networks: Draws = {f"resnet18-r{draw}" if draw else "resnet18": [0.9] * 4 for draw in range(draws)}
    return made_draws({"filtered": networks, "random": networks})


def _found(runs: list[Run]) -> Ratio:
    (found,) = ratios(runs, [1.0 + 0.01 * row for row in range(len(runs))], 0.05)
    return found


def _said(runs: list[Run]) -> str:
    return ratio_sentence(
        asdict(_found(runs)), 0.05, what="to it", unit="times", words={"lower": "sooner"}, left_out="some left out"
    )


def test_seeds_of_one_draw_are_what_counts_and_the_draw_is_named() -> None:
    said = _said(_runs(draws=1))
    assert "; n = 4 seeds; " in said
    assert _CONDITION in said


def test_several_draws_are_what_counts_and_nothing_is_conditional_on_one() -> None:
    said = _said(_runs(draws=3))
    assert "; n = 3 draws of the filter, each the mean over 4 seeds; " in said
    assert _CONDITION not in said


def test_several_settings_are_averaged_first() -> None:
    runs = [
        made_run(arm, seed, 0.9, batch_size=batch_size)
        for arm in ("filtered", "random")
        for batch_size in (32, 64)
        for seed in range(4)
    ]
    assert "; n = 4 seeds, each the mean over 2 settings; " in _said(runs)


@pytest.mark.parametrize(("n", "said"), [(1, ""), (2, "These 2 tests are not adjusted for their number.")])
def test_several_tests_are_said_not_to_be_adjusted(n: int, said: str) -> None:
    tested, untested = asdict(_found(_runs(draws=1))), asdict(_found(_runs(draws=1)[::4]))
    assert untested["p"] is None
    assert unadjusted_sentence([tested] * n + [untested]) == said
