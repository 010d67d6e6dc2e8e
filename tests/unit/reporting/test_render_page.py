import re
from collections import Counter
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.params import Params, check_params
from pipeline.paths import DataPaths
from pipeline.reporting import render as of_page
from pipeline.reporting.comparison_tables import verdict_table
from pipeline.reporting.inputs import load_report_inputs
from pipeline.reporting.render import render_page
from pipeline.reporting.summary import build_summary
from pipeline.stages.report import page_figures
from tests.fixtures.content_policy import policy_sources
from tests.fixtures.report import CLASS_NAMES, default_outcome, params_tree, params_with, write_artifacts, write_network


class Parsed(HTMLParser):
    """Elements with their attributes, and the text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._raw = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._raw = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        if not self._raw:
            self.text += data


def render(params: Params, data: DataPaths) -> str:
    inputs = load_report_inputs(params, data)
    summary = build_summary(inputs)
    return render_page(params, summary, page_figures(inputs, summary))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    data, params = DataPaths(root=tmp_path_factory.mktemp("data")), params_with()
    write_artifacts(data, params)
    return render(params, data)


@pytest.fixture(scope="module")
def parsed(page: str) -> Parsed:
    return Parsed(page)


def test_sentences_stand_apart(parsed: Parsed) -> None:
    assert not re.findall(r".*[a-z)]\.[A-Z][a-z].*", parsed.text)


def test_nothing_is_fetched(parsed: Parsed) -> None:
    for tag, attributes in parsed.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster", "background"):
            address = attributes.get(name)
            assert address is None or address.startswith(("data:", "#")), (tag, name, address)
    assert not {tag for tag, _ in parsed.elements} & {"link", "iframe", "object", "embed", "base", "form"}
    policy = next(a["content"] or "" for _, a in parsed.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy_sources(policy)["default-src"] == ["'none'"]
    assert "http" not in policy


def test_the_page_is_small_enough_to_send(page: str) -> None:
    assert len(page.encode()) < 8e6


def test_the_style_names_no_address(page: str) -> None:
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert len(styles) == 1
    assert not re.search(r"url\(|@import", styles[0])
    assert {"(prefers-color-scheme: dark)", "print"} <= set(re.findall(r"@media ([^{]+?) *{", styles[0]))


@pytest.mark.slow
def test_contents_name_thresholds_next_to_table_one_alone(page: str, tmp_path: Path) -> None:
    params, data = params_with(["resnet18"], seeds=[0], paper_figure="gahlot-2020-table1"), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    assert [text.count('<a href="#eps">') for text in (page, render(params, data))] == [0, 1]


def test_hostile_names_stay_text(parsed: Parsed) -> None:
    for name in CLASS_NAMES:
        assert name in parsed.text
    tags = Counter(tag for tag, _ in parsed.elements)
    # Two maps, single classes and six dropped images for each of two networks; the first screen repeats one's six.
    assert tags["img"] == 2 * 3 + 2 * 6 + 6
    # plotly.js, four charts of the study and one of the filter; the script of the embeddings, its names, two maps each.
    assert tags["script"] == 1 + 4 + 1 + 2 + 2 * 2
    titles = [attributes["title"] for tag, attributes in parsed.elements if tag == "figure" and "title" in attributes]
    assert titles[0] is not None
    assert titles[0].startswith(f"{CLASS_NAMES[3]}/79.png: ")
    assert titles[0].endswith(CLASS_NAMES[1])


def test_ids_are_unique_and_every_link_leads_to_one(parsed: Parsed) -> None:
    ids = Counter(attributes["id"] for _, attributes in parsed.elements if "id" in attributes)
    assert set(ids.values()) == {1}
    links = {attributes["href"] for tag, attributes in parsed.elements if tag == "a"}
    assert {f"#{anchor}" for anchor in ids} >= links
    assert "#study-digits" in links


def test_images_have_a_text_for_those_who_do_not_see_them(parsed: Parsed) -> None:
    assert all(attributes.get("alt") for tag, attributes in parsed.elements if tag == "img")


def test_the_page_has_the_parameters(parsed: Parsed) -> None:
    assert "drop_fraction: 0.05" in parsed.text


def test_the_primary_verdict_is_the_first_thing_said(page: str) -> None:
    start = page.index('<section id="verdict">')
    primary, secondary = (page.index(f"filtered against {control} at ", start) for control in ("random", "full"))
    assert start < primary < secondary < page.index('<section id="study-digits">')


@pytest.mark.slow
def test_many_studies_have_a_table_of_verdicts_and_a_sentence_each(tmp_path: Path) -> None:
    tree, data = params_tree(["resnet18"], seeds=[0, 1], batch_sizes=[128]), DataPaths(root=tmp_path)
    full_alone = {**tree["studies"]["digits"], "arms": ["full"]}
    tree["studies"] |= {"second": dict(tree["studies"]["digits"]), "third": dict(tree["studies"]["digits"])}
    tree["studies"]["alone"] = full_alone
    params = check_params(tree, source="params.yaml")
    write_artifacts(data, params)
    summary = build_summary(load_report_inputs(params, data))
    compared = [name for name in tree["studies"] if name != "alone"]
    rows = verdict_table(summary["studies"], 0.95).rows
    assert [row[0] for row in rows] == 2 * compared
    assert ["primary" in row[1] for row in rows] == [True] * 3 + [False] * 3
    page = render(params, data)
    of_each = page.split('<section id="study-')
    assert "filtered against random at " not in of_each[0]
    assert [section.count("filtered against random at ") for section in of_each[1:]] == [1, 1, 1, 0]


def test_the_verdict_names_what_the_arms_had_the_same_number_of(tmp_path: Path) -> None:
    params, data = params_with(["resnet18"], match="epochs"), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    (study,) = build_summary(load_report_inputs(params, data))["studies"]
    assert study["plan"]["matched"] == "epochs"
    assert study["pooled"][0]["headline"] in Parsed(render(params, data)).text


@pytest.mark.slow
def test_arms_with_unequal_epochs_by_whole_steps_are_named(tmp_path: Path) -> None:
    params, data = params_with(["resnet18"], match="epochs", batch_sizes=[32, 128]), DataPaths(root=tmp_path)

    def outcome(row: Mapping[str, Any]) -> Mapping[str, Any]:
        more = 1.054 if (row["batch_size"], row["arm"]) == (128, "filtered") else 1.0
        return {**default_outcome(row), "epochs": 1.88 * more}

    write_artifacts(data, params, outcome)
    (study,) = build_summary(load_report_inputs(params, data))["studies"]
    assert [(found["batch_size"], found["share"]) for found in study["epochs_apart"]] == [(128, pytest.approx(0.054))]
    write_artifacts(data, params)
    (study,) = build_summary(load_report_inputs(params, data))["studies"]
    assert study["epochs_apart"] == []


def test_critical_batch_sizes_are_shown_where_they_were_measured(parsed: Parsed, tmp_path: Path) -> None:
    assert "McCandlish" not in parsed.text
    params, data = params_with(["resnet18"], seeds=[0], batch_sizes=[128]), DataPaths(root=tmp_path)
    noise = {"critical_batch": 1234.5, "critical_batch_low": 900.0, "critical_batch_high": 1500.0}
    write_artifacts(data, params, lambda row: {**default_outcome(row), **(noise if row["arm"] == "full" else {})})
    page = render(params, data)
    _, section = page.split("<h3>Critical batch size</h3>")
    section = section.split("<h3>")[0]
    assert re.findall("<td.*?>(.*?)</td>", section) == ["128", "full", "1,234", "900 to 1,500", "1"]
    assert "McCandlish" in section


@pytest.mark.slow
def test_equal_inputs_make_an_equal_page(page: str, tmp_path: Path) -> None:
    write_artifacts(DataPaths(root=tmp_path), params_with())
    assert render(params_with(), DataPaths(root=tmp_path)) == page


def test_shares_by_threshold_are_shown_next_to_table_one_alone(page: str, tmp_path: Path) -> None:
    assert "threshold" not in page.split("</nav>")[0].split("<nav")[1]
    assert 'id="eps"' not in page
    assert 'id="filter-eps"' not in page
    params, data = params_with(["resnet18"], seeds=[0], paper_figure="gahlot-2020-table1"), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    about = render(params, data)
    assert '<a href="#eps">Share against threshold</a>' in about
    assert 'id="filter-eps"' in about


def test_a_filter_that_drops_nothing_has_an_empty_gallery(tmp_path: Path) -> None:
    params, data = params_with(["resnet18"], seeds=[0]), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    write_network(data, "resnet18", dropped=0)
    (network,) = build_summary(load_report_inputs(params, data))["networks"]
    assert (network["n"], network["kept_share"]) == (network["n_kept"], 1.0)
    page = render(params, data)
    assert "<figcaption><b>" not in page
    assert "100.00 %" in page


def test_a_study_without_results_still_has_its_section(tmp_path: Path) -> None:
    params, data = params_with(["resnet18"], seeds=[0]), DataPaths(root=tmp_path)
    write_artifacts(
        data, params, lambda _: {"status": "skipped", "reason": "batch <b>512</b> is too large", "steps": None}
    )
    page = render(params, data)
    assert 'id="study-digits"' in page
    assert "batch <b>512</b> is too large" in Parsed(page).text
    for arms, secondary in ((["full"], 0), (["full", "filtered"], 1)):
        others = params_with(["resnet18"], arms=arms)
        write_artifacts(data, others)
        (study,) = build_summary(load_report_inputs(others, data))["studies"]
        assert [row["primary"] for row in study["pooled"]] == [False] * secondary
        assert render(others, data).count("filtered against full at ") == secondary


def test_a_legend_of_more_classes_than_colors_is_left_out(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert page.count('<li><i style="background: ') == len(CLASS_NAMES) + 1
    monkeypatch.setattr(of_page, "N_CLASS_COLORS", len(CLASS_NAMES) - 1)
    params, data = params_with(["resnet18"], seeds=[0]), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    crowded = render(params, data)
    assert crowded.count('<li><i style="background: ') == 1
