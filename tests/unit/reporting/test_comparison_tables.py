"""The sentence on a ratio: its basis and its conditions."""

from dataclasses import asdict

from pipeline.reporting.comparison_tables import ratio_sentence, unadjusted_sentence
from pipeline.stats.ratios import Ratio, ratios
from pipeline.stats.runs import Run
from tests.fixtures.golden import check_golden
from tests.fixtures.runs import Draws, made_draws, made_run


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


def test_what_counts_and_on_what_it_is_conditional() -> None:
    settings = [
        made_run(arm, seed, 0.9, batch_size=batch_size)
        for arm in ("filtered", "random")
        for batch_size in (32, 64)
        for seed in range(4)
    ]
    cases = {
        "seeds of one draw": _runs(draws=1),
        "several draws": _runs(draws=3),
        "several settings": settings,
        "one seed": _runs(draws=1)[::4],
    }
    check_golden("ratio_sentences.txt", "\n".join(f"# {name}\n{_said(runs)}\n" for name, runs in cases.items()))


def test_several_tests_are_said_not_to_be_adjusted() -> None:
    tested, untested = asdict(_found(_runs(draws=1))), asdict(_found(_runs(draws=1)[::4]))
    assert untested["p"] is None
    assert unadjusted_sentence([tested, untested]) == ""
    assert unadjusted_sentence([tested, tested, untested])
