"""Golden texts of the report: a project with every section, and one with a single study."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.artifacts.files import read_json, write_json
from pipeline.artifacts.plans import register_plan, utc_timestamp, write_run_dates
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.config.params import Params, check_params
from pipeline.config.study_plan import build_plan
from pipeline.landscape.study import SCHEMA
from pipeline.paths import DataPaths, WorkPaths
from pipeline.reporting.inputs import PlanHistories, load_plans, load_report_inputs
from pipeline.reporting.landscape import Landscapes, load_landscapes
from pipeline.reporting.render import render_document, render_page
from pipeline.reporting.summary import Summary, build_summary
from tests.fixtures.golden import check_golden
from tests.fixtures.planted import say_planted
from tests.fixtures.report import default_outcome, figures_without_pictures, params_tree, params_with, write_artifacts

# Of 10 test images a class, 6 seeds and 2 settings, no share lies between two roundings of two digits.
_SEEDS = list(range(6))
_CHARTS = ("accuracy", "best_batch", "differences", "learning", "progress", "test_loss")
_GAINS = {"helps": 0.05, "hurts": -0.05, "at_looks": 0.05, "equivalent": 0.0}
"""Filtered minus the other arms, by study, in accuracy; the margin is 0.02."""

Found = tuple[Params, Summary, Landscapes, PlanHistories]


def _tree() -> dict[str, Any]:
    tree = params_tree(["resnet18", "resnet34"])
    base = tree["studies"].pop("digits")
    pair = {**base, "arms": ["filtered", "random"], "batch_sizes": [64], "seeds": _SEEDS}
    words = {"question": "Does it *help*?", "hypotheses": ["It does.", "More so later."], "rate_selection": "On val."}
    full = {**base, "arms": ["full"], "batch_sizes": [32, 128], "budget": {"epochs": 20.0}}
    tree["studies"] = {
        "helps": {**base, "batch_sizes": [32, 64], "seeds": _SEEDS, "plan": words},
        "hurts": {**pair, "match": "epochs"},
        "equivalent": pair,
        "at_looks": {**pair, "seeds": list(range(8)), "looks": [6, 8]},
        "undecided": {**base, "accuracy_every": {"steps": 1}},
        "without_random": {**pair, "arms": ["full", "filtered"], "seeds": [0]},
        "without_result": {**pair, "seeds": [0]},
        "published": {
            **base,
            "paper_figure": "gahlot-2020-fig6",
            "batch_sizes": [256],
            "weight_decays": [0.005, 0.012],
        },
        "without_numbers": {**full, "paper_figure": "gahlot-2020-fig4", "learning_rates": [0.05, 0.1]},
        **{
            f"warmup_{epochs}": {**full, "recipe": {"schedule": {"name": "cosine", "warmup": {"epochs": epochs}}}}
            for epochs in (1, 2)
        },
    }
    tree["report"] |= {"margin": 2.0, "target_top1": 0.08}
    return tree


def _outcome(row: Mapping[str, Any]) -> Mapping[str, Any]:
    study, size, seed = row["study"], row["batch_size"], row["seed"]
    if study == "without_result" or (study, size) == ("undecided", 512):
        return {"status": "skipped", "reason": f"batch {size} is <b>too large</b> | here", "steps": None}
    if (study, size, row["arm"], seed) == ("undecided", 128, "full", 1):
        return {"status": "diverged", "reason": "the training loss stopped being finite"}
    top1 = default_outcome(row)["top1"]
    if study in _GAINS:
        noise = np.random.default_rng([seed, size, len(row["arm"])]).normal(0, 0.004)
        top1 = 0.8 + _GAINS[study] * (row["arm"] == "filtered") + noise
    elif row["arm"] == "full" and study.startswith(("warmup", "without_numbers")):
        best = 128 if study == "warmup_2" or row["learning_rate"] == 0.1 or seed == 2 else 32
        top1 = 0.9 - 0.01 * abs(np.log2(size / best))
    if study == "published" and row["arm"] == "filtered":
        top1 += 0.013 * (row["weight_decay"] == 0.005) + 0.001 * seed
    measured = {"top1": top1, "balanced_accuracy": top1 - 0.01}
    if study == "hurts" and row["arm"] == "filtered":
        measured["epochs"] = row["epochs"] * 1.054
    if study == "undecided" and size == 128:
        measured |= {"critical_batch": 900.4 + seed, "critical_batch_low": 700.0, "critical_batch_high": 1200.0}
    return measured


def _write_landscape(data: DataPaths, name: str) -> None:
    """Filtered networks are twice as smooth on training images; the first network did not converge."""
    rows: list[dict[str, Any]] = []
    for run in read_parquet(data.runs(name)).to_pylist():
        for split in ("train", "test"):
            value = (0.5 if (run["arm"], split) == ("filtered", "train") else 1.0) * (10 + run["seed"])
            known = {column: run[column] for column in SCHEMA.names if column in run}
            rows.append(
                known
                | {
                    "weights_sha256": "", "split": split, "n_images": 50, "measuring_seed": 0, "loss": 0.1,
                    "top_eigenvalue": value if rows else None, "residual": 0.0, "products": 9, "converged": bool(rows),
                    "rise": value / 7, "distances": [-1.0, 0.0, 1.0], "slices": [[0.1 + value, 0.1, 0.1 + value]],
                }
            )  # fmt: skip
    write_parquet(data.landscape(name), pa.Table.from_pylist(rows, schema=SCHEMA))
    data.landscape_figure(name).write_text("<svg/>")


def _state_plan(work: WorkPaths, params: Params, name: str) -> None:
    """Stated before the first of three runs, with four seeds, and stated again after it."""
    noon = datetime(2026, 11, 23, 12, tzinfo=UTC)
    study = params.studies[name]
    for days, seeds in ((0, study.seeds[:4]), (2, study.seeds)):
        stated = study.model_copy(update={"seeds": seeds})
        plan = build_plan(name, stated, params.train, params.report)
        register_plan(work.plans(name), plan, noon + timedelta(days=days))
    dates = {run: utc_timestamp(noon + timedelta(days=day)) for run, day in (("a", 1), ("b", 3), ("c", 3))}
    write_run_dates(work.plans(name), dates)


def _found(folder: Path, params: Params) -> Found:
    data, work = DataPaths(root=folder / "data"), WorkPaths(root=folder / ".work")
    inputs = load_report_inputs(params, data)
    # Of this machine, not of the project.
    versions = [{"package": "numpy", "version": "2.0", "stages": ["prepare", "extract@resnet18"]}]
    summary = build_summary(inputs) | {"versions": versions}
    return params, summary, load_landscapes(inputs.studies, data), load_plans(params, work)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("project")
    params, data = check_params(_tree(), source="params.yaml"), DataPaths(root=folder / "data")
    write_artifacts(data, params, _outcome)
    say_planted(data, {3: 0, 75: 1, 78: 1, 79: 2})
    points = read_parquet(data.points("resnet34"))
    keep = points["keep"].to_numpy(zero_copy_only=False).copy()
    keep[[0, -1]] = False, True
    write_parquet(data.points("resnet34"), points.set_column(points.column_names.index("keep"), "keep", [keep]))
    metrics = read_json(data.filter_metrics("resnet34"))
    write_json(data.filter_metrics("resnet34"), {**metrics, "stability_over_maps": [0.25]})
    _write_landscape(data, "helps")
    _state_plan(WorkPaths(root=folder / ".work"), params, "helps")
    return _found(folder, params)


def _document(params: Params, summary: Summary, landscapes: Landscapes, plans: PlanHistories) -> str:
    """Without the parameters at its end, and without hashes: they are of files and of all keys of params.yaml."""
    figures = [f"{study['name']}.{chart}.svg" for study in summary["studies"] for chart in _CHARTS]
    figures += ["warmups.svg", *(f"{network['name']}.train-map.png" for network in summary["networks"])]
    text = render_document(params, summary, figures, landscapes, plans)
    text = re.sub(r"```yaml\n.*```", "```yaml\n...\n```", text, flags=re.DOTALL)
    return re.sub(r"\b[0-9a-f]{64}\b", "<SHA-256>", text)


class Prose(HTMLParser):
    """The text of a page without its tables, a line for each element that begins one."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._parts = [""]
        self._skipped: list[str] = []
        self.feed(page)

    @property
    def text(self) -> str:
        lines = (" ".join(line.split()) for line in self._parts)
        return "\n".join(line for line in lines if line) + "\n"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("table", "script", "style", "pre"):
            self._skipped.append(tag)
        if tag in ("title", "p", "li", "h1", "h2", "h3", "h4", "figcaption", "summary"):
            self._parts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._skipped:
            self._skipped.remove(tag)

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self._parts[-1] += data


def test_the_document_of_a_project_with_every_section(found: Found) -> None:
    _, summary, *_ = found
    outcomes = [study["pooled"][0]["verdict"]["outcome"] for study in summary["studies"][:5]]
    assert outcomes == ["helps", "hurts", "equivalent", "helps", "undecided"]
    check_golden("report.md", _document(*found))


def test_the_page_of_a_project_with_every_section(found: Found) -> None:
    params, summary, landscapes, plans = found
    charts = {study["name"]: dict.fromkeys(_CHARTS, "") for study in summary["studies"]}
    figures = figures_without_pictures(charts, params.networks)
    page = Prose(render_page(params, summary, figures, landscapes, plans)).text
    check_golden("report_page.txt", re.sub(r"\b[0-9a-f]{64}\b", "<SHA-256>", page))


def test_the_document_of_one_study_has_its_sentence_first(tmp_path: Path) -> None:
    params = params_with(["resnet18"], batch_sizes=[128])
    write_artifacts(DataPaths(root=tmp_path / "data"), params)
    check_golden("report_of_one_study.md", _document(*_found(tmp_path, params)))
