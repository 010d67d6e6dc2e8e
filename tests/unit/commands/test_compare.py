"""`python -m pipeline compare`: folders, text and JSON, and one-line errors."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.__main__ import main
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.artifacts.tables import read_parquet, write_parquet
from tests.fixtures.experiments import edit_record, gains, run_rows, state_planted, write_experiment
from tests.fixtures.golden import check_golden

KEPT = {"resnet18": ["a", "b", "c"], "resnet34": ["a"]}
CAT, DOG, CLEANED = ("image 1", "cat"), ("image 2", "dog"), ("image 3", "dog")


def noise(row: Any) -> float:
    return 0.001 * float(row["seed"]) - 0.002


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two projects, of which the first is given as such and the second by its data folder."""
    a = write_experiment(tmp_path / "a/data", {"digits": run_rows(), "old": run_rows()}, KEPT)
    b = {"digits": run_rows(batch_sizes=[32, 512], change=gains(noise)), "new": run_rows()}
    return a.parent, write_experiment(tmp_path / "b", b, {"resnet18": ["b", "c", "d", "e"], "resnet50": []})


def printed_by(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["compare", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def unlucky(row: Any) -> dict[str, Any]:
    diverged = row["batch_size"] == 32 and row["seed"] == 1
    return {"status": "diverged", "top1": None} if diverged else gains(noise)(row)


def test_the_text(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With paths relative to the folder, as lines are wrapped."""
    monkeypatch.chdir(tmp_path)
    a, b = folders
    state_planted(a / "data", 1440)
    state_planted(b, None)
    tables = {
        "full": run_rows(arms=["full"], change=gains(noise)),
        "worse": run_rows(seeds=range(8), change=gains(lambda row: noise(row) - 0.05)),
        "incomplete": run_rows(change=unlucky),
        "unpaired": run_rows(batch_sizes=[64]),
    }
    before = {name: run_rows(arms=["full"]) if name == "full" else run_rows(seeds=range(8)) for name in tables}
    write_experiment(tmp_path / "first", before, margin=0.5)
    write_experiment(tmp_path / "second", tables, margin=0.7, confidence=0.99)
    write_experiment(tmp_path / "cleaned", tables, tested=[CAT, CLEANED])
    pairs = {
        "two folders": (a.relative_to(tmp_path), b.relative_to(tmp_path), "--margin", "0.5"),
        "the same folder": ("first", "first"),
        "the second has a report": ("first", "second"),
        "other test images": ("first", "cleaned"),
    }
    check_golden("compare.txt", "\n".join(f"## {name}\n\n{printed_by(capsys, *of)}" for name, of in pairs.items()))


def test_each_side_has_the_number_of_labels_changed_on_purpose(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = folders
    state_planted(a / "data", 1440)
    state_planted(b, None)
    result = json.loads(printed_by(capsys, a, b, "--json"))
    assert (result["n_planted_a"], result["n_planted_b"]) == (1440, None)


def test_json_is_one_line_with_the_same_numbers(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = printed_by(capsys, *folders, "--json").splitlines()
    result = json.loads(line)
    assert (result["a"], result["b"], result["alpha"]) == (*map(str, folders), 0.05)
    assert result["margin"] == {"points": 0.3, "stated": "default"}
    (study,) = result["studies"]
    pooled = [(of_arm["arm"], of_arm["settings"], of_arm["left_out"]) for of_arm in study["pooled"]]
    assert pooled == [("filtered", 1, 0), ("full", 1, 0)]
    assert study["pooled"][0]["estimate"]["mean"] == pytest.approx(-0.1)
    assert study["pooled"][0]["verdict"]["seeds"] == 3
    assert [row["setting"]["arm"] for row in study["settings"]] == ["filtered", "full"]
    assert {row["verdict"]["comparisons"] for row in study["settings"]} == {2}
    assert {row["batch_size"] for row in study["only_b"]} == {512}
    assert result["filters"] == [
        {"network": "resnet18", "share_a": 0.3, "share_b": 0.4, "jaccard": 0.4, "only_a": 1, "only_b": 2}
    ]
    assert (result["studies_only_a"], result["networks_only_b"]) == (["old"], ["resnet50"])


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([["resnet18"], ["resnet18", "resnet18-r1"]]),
    st.sampled_from([[2, 20480], [128]]),
    st.sampled_from([{}, {"learning_rate": 0.0123456}, {"simulated_workers": 1024}]),
    st.sampled_from([1e-9, 0.01, 0.09]),
)
def test_no_line_is_wider_than_a_terminal(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    networks: list[str],
    sizes: list[int],
    more: dict[str, Any],
    gain: float,
) -> None:
    arms = ["full", "filtered", "random", "random_uniform"]
    rows = run_rows(arms=arms, batch_sizes=sizes, networks=networks)
    rows += [row | more for row in rows] if more else []
    other = [row | gains(lambda row: gain * (row["seed"] - 1))(row) for row in rows]
    name = "a study of quite a long name" * 3
    a, b = (write_experiment(tmp_path / place, {name: table}, KEPT) for place, table in (("a", rows), ("b", other)))
    shown = printed_by(capsys, a, b).splitlines()
    assert [line for line in shown if len(line) > 100 and str(tmp_path) not in line] == []


def test_values_that_vary_head_their_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_rows(arms=["filtered"]) + [row | {"learning_rate": 0.04} for row in run_rows(arms=["filtered"])]
    a = write_experiment(tmp_path / "a", {"digits": rows})
    b = write_experiment(tmp_path / "b", {"digits": [row | gains(noise)(row) for row in rows]})
    shown = printed_by(capsys, a, b).splitlines()
    (first, second) = (shown.index(f"  lr {rate}") for rate in (0.02, 0.04))
    assert [line.split()[:2] for line in shown[first + 1 : second]] == [["filtered", "32"], ["filtered", "128"]]


def test_the_same_experiment_twice_is_not_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_experiment(tmp_path / "a", {"digits": run_rows()})
    (study,) = json.loads(printed_by(capsys, folder, folder, "--json"))["studies"]
    assert (study["pairs"], study["same_runs"], study["pooled"]) == (0, 12, [])


def test_a_draw_is_named_where_a_filter_has_a_part_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arm, conditional in (("full", 0), ("filtered", 1)):
        a = write_experiment(tmp_path / f"a {arm}", {"digits": run_rows(arms=[arm])})
        b = write_experiment(tmp_path / f"b {arm}", {"digits": run_rows(arms=[arm], change=gains(noise))})
        shown = " ".join(printed_by(capsys, a, b).split())
        assert shown.count("conditional on this one replicate of the filter") == conditional


def test_incomplete_settings_are_counted_in_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_experiment(tmp_path / "a", {"digits": run_rows()})
    b = write_experiment(tmp_path / "b", {"digits": run_rows(change=unlucky)})
    (study,) = json.loads(printed_by(capsys, a, b, "--json"))["studies"]
    assert {row["left_out"] for row in study["pooled"]} == {1}


def test_without_a_pair_there_is_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_experiment(tmp_path / "a", {"digits": run_rows(batch_sizes=[32])})
    b = write_experiment(tmp_path / "b", {"digits": run_rows(batch_sizes=[64])})
    (study,) = json.loads(printed_by(capsys, a, b, "--json"))["studies"]
    assert (study["pairs"], study["pooled"]) == (0, [])


@pytest.mark.parametrize(
    ("tested", "counts"),
    [
        ([CAT, CLEANED], ["2", "2", "1"]),
        ([CAT, DOG, CLEANED], ["2", "3", "2"]),
        ([CAT, ("image 2", "cat")], ["2", "2", "1"]),
    ],
)
def test_accuracies_on_other_images_get_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tested: list[tuple[str, str]], counts: list[str]
) -> None:
    a = write_experiment(tmp_path / "a", {"digits": run_rows()}, tested=[CAT, DOG])
    b = write_experiment(tmp_path / "b", {"digits": run_rows(change=gains(lambda _: 0.05))}, tested=tested)
    (study,) = json.loads(printed_by(capsys, a, b, "--json"))["studies"]
    assert re.findall(r"\d+", study["no_verdict"]) == counts
    assert (study["pairs"], study["pooled"], study["settings"]) == (12, [], [])
    shown = " ".join(printed_by(capsys, a, b).split())
    assert study["no_verdict"] in shown
    assert not {"helps", "interval"} & set(re.findall(r"\w+", shown))


def test_the_order_of_test_images_does_not_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_experiment(tmp_path / "a", {"digits": run_rows()}, tested=[CAT, DOG])
    b = write_experiment(tmp_path / "b", {"digits": run_rows(change=gains(noise))}, tested=[DOG, CAT])
    (study,) = json.loads(printed_by(capsys, a, b, "--json"))["studies"]
    assert study["no_verdict"] is None
    assert [row["arm"] for row in study["pooled"]] == ["filtered", "full"]


def no_manifest(data: Path) -> None:
    (data / "prepare/test.parquet").unlink()


def no_provenance(data: Path) -> None:
    (data / "train/digits.provenance.json").unlink()


def _prepared_again(data: Path, name: str) -> None:
    digest = sha256_of_file(data / "prepare" / name)
    edit_record(data / "prepare/provenance.json", lambda record: record["outputs"].update({name: digest}))


def other_pixels_since(data: Path) -> None:
    (data / "prepare/test.npy").write_text("others")
    _prepared_again(data, "test.npy")


def relabeled_since(data: Path) -> None:
    """The labels of the study's test images are no longer known, though the network saw the same pixels."""
    table = read_parquet(data / "prepare/test.parquet")
    write_parquet(data / "prepare/test.parquet", table.set_column(1, "label_name", pa.array(["cat"] * len(table))))
    _prepared_again(data, "test.parquet")


def from_before_labels_were_recorded(data: Path) -> None:
    edit_record(data / "train/digits.provenance.json", lambda record: record["inputs"].pop("../prepare/test.parquet"))


def test_unknown_test_images_get_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, reasons = write_experiment(tmp_path / "a", {"digits": run_rows()}), []
    for harm in (no_manifest, no_provenance, other_pixels_since, relabeled_since, from_before_labels_were_recorded):
        b = write_experiment(tmp_path / harm.__name__, {"digits": run_rows(change=gains(noise))})
        harm(b)
        (study,) = json.loads(printed_by(capsys, a, b, "--json"))["studies"]
        assert (study["pooled"], study["settings"]) == ([], [])
        assert study["no_verdict"] in " ".join(printed_by(capsys, a, b).split())
        reasons.append(f"{harm.__name__}: {study['no_verdict']}\n")
        (itself,) = json.loads(printed_by(capsys, b, b, "--json"))["studies"]
        assert (itself["no_verdict"], itself["same_runs"]) == (None, 12)
    check_golden("compare_no_verdict.txt", "".join(reasons))
