"""`python -m pipeline compare`: folders, text and JSON, and one line for what cannot be compared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_up_experiments import cells, gains, write_experiment

from pipeline.__main__ import main
from pipeline.artifacts.json_file import write_json
from pipeline.paths import DataPaths

KEPT = {"resnet18": ["a", "b", "c"], "resnet34": ["a"]}


def noise(row: Any) -> float:
    return 0.001 * float(row["seed"]) - 0.002


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two projects, of which the first is given as such and the second by its data folder."""
    a = write_experiment(tmp_path / "a/data", {"digits": cells(), "old": cells()}, KEPT)
    b = {"digits": cells(batch_sizes=[32, 512], change=gains(noise)), "new": cells()}
    return a.parent, write_experiment(tmp_path / "b", b, {"resnet18": ["b", "c", "d", "e"], "resnet50": []})


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["compare", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_verdict_table_and_filters_of_two_folders(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = said(capsys, *folders, "--margin", "0.5")
    assert "B against A, arm filtered: equivalent within ±0.50 percentage points (mean −0.10" in shown
    assert "after Holm for 2 arms" in " ".join(shown.split())
    assert "B against A, arm full: equivalent" in shown
    assert "12 runs in A, 12 in B: 6 pairs." in shown
    row = "  full         32  3  −0.10  −0.35 to +0.15  0.23    0.5  0.01  equivalent"
    assert row in shown.splitlines()
    assert "within ±0.5 points (TOST), each as it is; verdicts after Holm for 2" in shown
    assert "  only in A:\n    filtered, resnet18, filter resnet18, simulated workers 1, lr 0.02, wd" in shown
    assert "  only in B:\n" in shown
    assert "  resnet18        30.00        40.00   0.4000        1        2" in shown.splitlines()
    for line in (
        "studies only in A: old",
        "studies only in B: new",
        "filters only in A: resnet34",
        "filters only in B: resnet50",
    ):
        assert line in shown.splitlines()


def test_each_side_says_how_many_labels_were_changed_on_purpose(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = folders
    write_json(DataPaths(root=a / "data").prepare_metrics, {"n_planted": 1440})
    write_json(DataPaths(root=b).prepare_metrics, {"n_planted": None})
    text = " ".join(said(capsys, a, b).split())  # lines are wrapped
    assert "labels changed on purpose: 1,440" in text.split(f"B = {b}")[0]
    assert text.count("on purpose") == 1
    found = json.loads(said(capsys, a, b, "--json"))
    assert (found["n_planted_a"], found["n_planted_b"]) == (1440, None)


def test_json_is_one_line_with_the_same_numbers(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(capsys, *folders, "--json").splitlines()
    found = json.loads(line)
    assert (found["a"], found["b"], found["alpha"]) == (*map(str, folders), 0.05)
    assert found["margin"] == {"points": 0.3, "stated": "default"}
    (study,) = found["studies"]
    pooled = [(of_arm["arm"], of_arm["settings"], of_arm["left_out"]) for of_arm in study["pooled"]]
    assert pooled == [("filtered", 1, 0), ("full", 1, 0)]
    assert study["pooled"][0]["estimate"]["mean"] == pytest.approx(-0.1)
    assert study["pooled"][0]["verdict"]["seeds"] == 3
    assert [row["setting"]["arm"] for row in study["settings"]] == ["filtered", "full"]
    assert {row["verdict"]["comparisons"] for row in study["settings"]} == {2}
    assert {row["batch_size"] for row in study["only_b"]} == {512}
    assert found["filters"] == [
        {"network": "resnet18", "share_a": 0.3, "share_b": 0.4, "jaccard": 0.4, "only_a": 1, "only_b": 2}
    ]
    assert (found["studies_only_a"], found["networks_only_b"]) == (["old"], ["resnet50"])


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
    rows = cells(arms=arms, batch_sizes=sizes, networks=networks)
    rows += [row | more for row in rows] if more else []
    other = [row | gains(lambda row: gain * (row["seed"] - 1))(row) for row in rows]
    name = "a study of quite a long name" * 3
    a, b = (write_experiment(tmp_path / place, {name: table}, KEPT) for place, table in (("a", rows), ("b", other)))
    shown = said(capsys, a, b).splitlines()
    assert [line for line in shown if len(line) > 100 and str(tmp_path) not in line] == []


def test_values_that_vary_head_their_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = cells(arms=["filtered"]) + [row | {"learning_rate": 0.04} for row in cells(arms=["filtered"])]
    a = write_experiment(tmp_path / "a", {"digits": rows})
    b = write_experiment(tmp_path / "b", {"digits": [row | gains(noise)(row) for row in rows]})
    shown = said(capsys, a, b).splitlines()
    (first, second) = (shown.index(f"  lr {rate}") for rate in (0.02, 0.04))
    assert [line.split()[:2] for line in shown[first + 1 : second]] == [["filtered", "32"], ["filtered", "128"]]


def test_the_same_experiment_twice_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_experiment(tmp_path / "a", {"digits": cells()})
    assert "  B against A: the very same runs, so that there is nothing to test." in said(capsys, folder, folder)


def test_a_draw_is_named_where_a_filter_has_a_part_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arm, conditional in (("full", 0), ("filtered", 1)):
        a = write_experiment(tmp_path / f"a {arm}", {"digits": cells(arms=[arm])})
        b = write_experiment(tmp_path / f"b {arm}", {"digits": cells(arms=[arm], change=gains(noise))})
        shown = " ".join(said(capsys, a, b).split())
        assert shown.count("conditional on this one draw of the filter") == conditional


def test_incomplete_settings_are_counted_in_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def unlucky(row: Any) -> dict[str, Any]:
        diverged = row["batch_size"] == 32 and row["seed"] == 1
        return {"status": "diverged", "top1": None} if diverged else gains(noise)(row)

    a = write_experiment(tmp_path / "a", {"digits": cells()})
    b = write_experiment(tmp_path / "b", {"digits": cells(change=unlucky)})
    assert "; 1 incomplete setting left out)." in " ".join(said(capsys, a, b).split())


def test_without_a_pair_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_experiment(tmp_path / "a", {"digits": cells(batch_sizes=[32])})
    b = write_experiment(tmp_path / "b", {"digits": cells(batch_sizes=[64])})
    assert "B against A: nothing to compare, since no setting has" in said(capsys, a, b)


CAT, DOG, CLEANED = ("image 1", "cat"), ("image 2", "dog"), ("image 3", "dog")


@pytest.mark.parametrize(
    ("tested", "difference"),
    [
        ([CAT, CLEANED], "A on 2, B on 2, of which 1 are"),
        ([CAT, DOG, CLEANED], "A on 2, B on 3, of which 2 are"),
        ([CAT, ("image 2", "cat")], "A on 2, B on 2, of which 1 are"),
    ],
)
def test_accuracies_on_other_images_get_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tested: list[tuple[str, str]], difference: str
) -> None:
    a = write_experiment(tmp_path / "a", {"digits": cells()}, tested=[CAT, DOG])
    b = write_experiment(tmp_path / "b", {"digits": cells(change=gains(lambda _: 0.05))}, tested=tested)
    shown = " ".join(said(capsys, a, b).split())
    reason = f"they were tested on other images: {difference} the same with the same label"
    assert f"B against A: no verdict, since {reason}." in shown
    assert "12 runs in A, 12 in B: 12 pairs." in shown
    assert "helps" not in shown
    assert "interval" not in shown
    (study,) = json.loads(said(capsys, a, b, "--json"))["studies"]
    assert (study["no_verdict"], study["pooled"], study["settings"]) == (reason, [], [])


def test_the_order_of_test_images_does_not_matter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_experiment(tmp_path / "a", {"digits": cells()}, tested=[CAT, DOG])
    b = write_experiment(tmp_path / "b", {"digits": cells(change=gains(noise))}, tested=[DOG, CAT])
    assert "B against A, arm filtered: " in said(capsys, a, b)


def no_manifest(data: Path) -> str:
    (data / "prepare/test.parquet").unlink()
    return "prepare/test.parquet is missing (that of a revision: `dvc pull --all-commits`)"


def no_provenance(data: Path) -> str:
    (data / "train/digits.provenance.json").unlink()
    return "a provenance file that names them, of prepare or of the study, is missing"


def _prepared_anew(data: Path, name: str) -> str:
    path = data / "prepare/provenance.json"
    recorded = json.loads(path.read_text())
    recorded["outputs"][name] = "others"
    path.write_text(json.dumps(recorded))
    return "data/prepare was made anew since the study was trained"


def other_pixels_since(data: Path) -> str:
    return _prepared_anew(data, "test.npy")


def relabelled_since(data: Path) -> str:
    """What the network was held against is no longer known, though it saw the same pixels."""
    return _prepared_anew(data, "test.parquet")


def from_before_labels_were_recorded(data: Path) -> str:
    path = data / "train/digits.provenance.json"
    recorded = json.loads(path.read_text())
    del recorded["inputs"]["../prepare/test.parquet"]
    path.write_text(json.dumps(recorded))
    return "it was trained before the labels were recorded with it; train it again (`dvc repro`)"


@pytest.mark.parametrize(
    "harm", [no_manifest, no_provenance, other_pixels_since, relabelled_since, from_before_labels_were_recorded]
)
def test_unknown_test_images_get_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], str]
) -> None:
    a = write_experiment(tmp_path / "a", {"digits": cells()})
    b = write_experiment(tmp_path / "b", {"digits": cells(change=gains(noise))})
    why = harm(b)
    shown = " ".join(said(capsys, a, b).split())
    reason = f"it is not known whether both were tested on the same images: of B, {why}"
    assert f"B against A: no verdict, since {reason}." in shown
    assert "of A, " not in shown
    assert "B against A: the very same runs" in said(capsys, b, b)


def no_study_in_common(folder: Path) -> None:
    write_experiment(folder, {"paper": cells()})


def no_results(folder: Path) -> None:
    (folder / "data/train").mkdir(parents=True)


def old_columns(folder: Path) -> None:
    rows = [{key: value for key, value in row.items() if key != "simulated_workers"} for row in cells()]
    write_experiment(folder, {"digits": rows})


def no_accuracy(folder: Path) -> None:
    write_experiment(folder, {"digits": cells(change=lambda row: {"top1": 90.0})})


def no_total(folder: Path) -> None:
    write_experiment(folder, {"digits": cells()}, {"resnet18": ["a", "b"]}, n_total=1)


def no_confidence(folder: Path) -> None:
    write_experiment(folder, {"digits": cells()}, margin=0.5, confidence=0.5)


def no_margin(folder: Path) -> None:
    write_experiment(folder, {"digits": cells()}, margin=0)


def no_table(folder: Path) -> None:
    (folder / "train").mkdir(parents=True)
    (folder / "train/digits.parquet").write_text("no table")


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (no_study_in_common, "b: no study in common; the one has digits, the other paper"),
        (no_results, "b: no study in "),
        (old_columns, "b/train/digits.parquet: has no column simulated_workers; it is of another version"),
        (no_accuracy, "b/train/digits.parquet: a finished run with top1 90.0"),
        (no_total, "b/filter/resnet18/metrics.json: n_total 1 for 2 images"),
        (no_confidence, "b/report/provenance.json: report.confidence 0.5 is no number above 0.5 and below 1"),
        (no_margin, "b/report/provenance.json: report.margin 0 is no number above 0 and below 100"),
        (no_table, "b/train/digits.parquet: damaged"),
    ],
)
def test_what_cannot_be_compared_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: Callable[[Path], None], expected: str
) -> None:
    a = write_experiment(tmp_path / "a", {"digits": cells()})
    harm(tmp_path / "b")
    assert main(["compare", str(a), str(tmp_path / "b")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err


@pytest.mark.parametrize(
    ("recorded", "arguments", "said_of_it"),
    [
        ((0.5, 0.7), [], "margin ±0.7 percentage points, the report.margin of B's report"),
        ((0.5, 0.7), ["--margin", "0.2"], "margin ±0.2 percentage points, as --margin says"),
        ((0.5, None), [], "margin ±0.3 percentage points, the default: B has no report that states one"),
    ],
)
def test_the_margin_is_that_of_the_second_report_unless_given(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    recorded: tuple[float | None, float | None],
    arguments: list[str],
    said_of_it: str,
) -> None:
    a = write_experiment(tmp_path / "a", {"digits": cells()}, margin=recorded[0])
    b = write_experiment(tmp_path / "b", {"digits": cells(change=gains(noise))}, margin=recorded[1])
    shown = said(capsys, a, b, *arguments)
    assert said_of_it in shown.splitlines()
    points = said_of_it.split()[1]
    assert f"within {points} points (TOST)" in shown


@pytest.mark.parametrize(("confidence", "alpha"), [(0.99, 0.01), (None, 0.05)])
def test_the_confidence_is_that_of_the_second_report_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], confidence: float | None, alpha: float
) -> None:
    a = write_experiment(tmp_path / "a", {"digits": cells()}, margin=0.5, confidence=0.9)
    b = {"digits": cells(change=gains(noise))}
    write_experiment(tmp_path / "b", b, margin=0.5 if confidence else None, confidence=confidence or 0.9)
    shown = said(capsys, a, tmp_path / "b")
    assert f"each test has the level {alpha:g}: the chance that it finds what is not there" in shown.splitlines()
    assert f"{100 * (1 - alpha):g} % t interval" in shown
    assert json.loads(said(capsys, a, tmp_path / "b", "--json"))["alpha"] == alpha


@pytest.mark.parametrize("margin", ["0", "-1", "100", "nan", "much"])
def test_a_margin_that_is_none_is_refused(margin: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["compare", ".", ".", f"--margin={margin}"])
    assert raised.value.code == 2
    assert "no number of percentage points above 0 and below 100" in capsys.readouterr().err
