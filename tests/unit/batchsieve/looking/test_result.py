"""The result of `look` as table, file and notebook output."""

import csv
from pathlib import Path

import pytest

from batchsieve import InputError, Look, look
from tests.fixtures.looking import colored


@pytest.fixture(scope="module")
def result() -> Look:
    images, labels = colored()
    labels[[4, 20]] = "blue", "<red>"
    labels[labels == "red"] = "<red>"
    return look(images, labels, features=images.mean(axis=(1, 2)))


def test_the_table_has_the_most_suspect_first(result: Look, tmp_path: Path) -> None:
    frame = result.to_pandas()
    assert set(frame.index[:2]) == {4, 20}
    assert frame["score"].is_monotonic_decreasing
    with result.save(tmp_path / "suspects.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == frame["path"].tolist()
    assert list(rows[0]) == list(frame.columns)


def test_a_spreadsheet_runs_no_label_of_the_table(tmp_path: Path) -> None:
    images, labels = colored()
    labels[labels == "red"] = "=1+1"
    result = look(images, labels, features=images.mean(axis=(1, 2)))
    with result.save(tmp_path / "suspects.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["label"] for row in rows} == {"'=1+1", "blue"}
    assert {row["suggested_label"] for row in rows} == {"'=1+1", "blue"}


def test_a_terminal_and_a_notebook_show_the_suspects(result: Look) -> None:
    gallery = result.show(1)
    first = result.suspects()[0]
    heading, line = repr(gallery).splitlines()[1:]
    assert heading.split() == ["path", "label", "suggested", "probability", "reason"]
    assert line.split()[:3] == [str(first), result.issues.label[first], result.issues.suggested_label[first]]
    html = gallery._repr_html_()
    assert html.count("<article") == 1
    assert html.count("data:image/jpeg;base64,") == 1 + 4
    assert "&lt;red&gt;" in html
    assert "<red>" not in html


def test_the_page_is_one_file_and_equal_results_give_equal_bytes(result: Look, tmp_path: Path) -> None:
    page = result.save(tmp_path / "look.html").read_text(encoding="utf-8")
    assert page == result.save(tmp_path / "again.html").read_text(encoding="utf-8")
    assert "<red>" not in page
    assert page.count("<article") == len(result.suspects()) == 2
    for outside in ('src="http', "src=http", "@import", "<link"):
        assert outside not in page.split("<script>")[0]


def test_the_headline_has_the_estimate_with_its_interval(result: Look) -> None:
    wrong = result.issues.wrong_share
    assert wrong is not None
    share = wrong.extrapolated
    n = len(result)
    assert result.headline == (
        f"about {round(share.share * n)} of 30 labels are wrong by estimate "
        f"(95 % interval {round(share.low * n)} to {round(share.high * n)})"
    )


@pytest.mark.parametrize("name", ["look.pdf", "look"])
def test_another_suffix_is_refused(result: Look, name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must end in \.html or \.csv"):
        result.save(tmp_path / name)
    with pytest.raises(InputError, match="n: 0"):
        result.show(0)
    assert list(tmp_path.iterdir()) == []
