"""The report's sentences on the plans of studies."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.plans import register_plan, utc_timestamp, write_run_dates
from pipeline.config.params import Params
from pipeline.config.study_plan import build_plan, plan_hash
from pipeline.paths import DataPaths, WorkPaths
from pipeline.reporting.inputs import load_plans, load_report_inputs
from pipeline.reporting.overview import equal_sentences, plan_sentences
from pipeline.reporting.render import render_document, render_page
from pipeline.reporting.summary import build_summary
from tests.fixtures.golden import check_golden
from tests.fixtures.report import figures_without_pictures, params_with, write_artifacts

_TEXT = {"question": "Does it <b>help</b>?", "hypotheses": ["It does."], "rate_selection": "On val."}
_NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
_DATE = "2026-11-23"


def _state(work: WorkPaths, params: Params, *, days: int = 0) -> str:
    plan = build_plan("digits", params.studies["digits"], params.train, params.report)
    register_plan(work.plans("digits"), plan, _NOON + timedelta(days=days))
    return plan_hash(plan)


def _record(work: WorkPaths, days: Mapping[str, float | None]) -> None:
    dates = {key: None if day is None else utc_timestamp(_NOON + timedelta(days=day)) for key, day in days.items()}
    write_run_dates(work.plans("digits"), dates)


def _last(params: Params, work: WorkPaths) -> str:
    return plan_sentences("digits", params, load_plans(params, work).get("digits"))[-1]


def _without_hash(sentence: str) -> str:
    """A line; the hash is of all keys of the study."""
    return re.sub(r"[0-9a-f]{64}", "<SHA-256>", sentence) + "\n"


@pytest.fixture
def work(tmp_path: Path) -> WorkPaths:
    return WorkPaths(root=tmp_path / ".work")


def _params(**study: Any) -> Params:
    return params_with(["resnet18"], plan=_TEXT, **study)


def test_without_words_the_hash_stands_alone_with_any_ledger(work: WorkPaths) -> None:
    params = params_with(["resnet18"])
    digest = _state(work, params)
    (sentence,) = plan_sentences("digits", params, load_plans(params, work).get("digits"))
    assert digest in sentence
    assert _DATE not in sentence


def test_a_plan_from_before_the_first_run_has_its_date(work: WorkPaths) -> None:
    digest = _state(work, _params())
    before = _last(_params(), work)
    assert digest in before
    assert _DATE in before
    _record(work, {"a": 0, "b": 1})
    assert _last(_params(), work) == before


def test_older_runs_are_counted_and_undated_ones_are_older(work: WorkPaths) -> None:
    _state(work, _params())
    _record(work, {"a": -1, "b": None, "c": 1})
    history = load_plans(_params(), work)["digits"]
    assert history.recorded_before(history.statements[0].date) == 2
    check_golden("plan_older_runs.txt", _without_hash(_last(_params(), work)))


def test_changed_lines_are_named_with_the_runs_known_then(work: WorkPaths) -> None:
    _state(work, _params(seeds=[0, 1]))
    _state(work, _params(seeds=[0, 1, 2]), days=2)
    _record(work, {"a": 1, "b": 1, "c": 3})
    now = _params(seeds=[0, 1, 2], match="epochs")
    check_golden("plan_changed.txt", _without_hash(_last(now, work)))


def test_a_plan_that_was_never_stated_is_said_to_be(work: WorkPaths) -> None:
    check_golden("plan_not_stated.txt", _without_hash(_last(_params(), work)))


def test_page_and_document_say_it_and_take_no_word_for_markup(tmp_path: Path, work: WorkPaths) -> None:
    params, data = _params(), DataPaths(root=tmp_path / "data")
    write_artifacts(data, params)
    digest = _state(work, params)
    summary, plans = build_summary(load_report_inputs(params, data)), load_plans(params, work)
    figures = figures_without_pictures({"digits": {}}, ["resnet18"])
    page, document = (
        render_page(params, summary, figures, plans=plans),
        render_document(params, summary, [], plans=plans),
    )
    for text in (page, document):
        assert digest in text
        assert _DATE in text
    assert "&lt;b&gt;help&lt;/b&gt;?" in page
    assert "\\<b\\>help" in document


@pytest.mark.parametrize(
    ("study", "says"),
    [
        ({}, []),
        ({"equal_across": "arms"}, ["steps of all arms. Different batch sizes are not called equal."]),
        (
            {"equal_across": "sizes", "budget": {"examples": 600}},
            ["steps of all arms. Equal at all batch sizes: examples."],
        ),
        (
            {"equal_across": "sizes", "budget": {"epochs": 2.0}, "match": "epochs"},
            ["epochs of their own images of all arms. Equal at all batch sizes: epochs."],
        ),
    ],
    ids=str,
)
def test_the_plan_says_what_arms_and_batch_sizes_share(study: dict[str, Any], says: list[str]) -> None:
    params = _params(**study)
    found = equal_sentences(params.studies["digits"])
    assert found == [f"Equal at each batch size: the {text}" for text in says]
    assert all(sentence in plan_sentences("digits", params, None) for sentence in found)
