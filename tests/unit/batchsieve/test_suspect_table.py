"""What `show` of `find_issues` gives a notebook and a terminal: rows of a table, or cards with pictures."""

import numpy as np
import pytest
from PIL import Image

from batchsieve import InputError, LabelIssues, find_issues
from tests.fixtures.looking import colored


@pytest.fixture(scope="module")
def issues() -> LabelIssues:
    images, labels = colored()
    labels[4] = "blue"
    labels[labels == "red"] = "<red>"
    return find_issues(labels, features=images.mean(axis=(1, 2)))


def test_a_terminal_shows_the_most_suspect_as_lines(issues: LabelIssues) -> None:
    first, heading, line, *others = repr(issues.show(3)).splitlines()
    assert first == repr(issues)
    assert heading.split() == ["sample", "label", "suggested_label", "score", "reason"]
    assert line.split()[:4] == ["4", "blue", "<red>", f"{issues.score[4]:.3f}"]
    assert line.endswith(issues.reason[4])
    assert len(others) == 2


def test_a_notebook_shows_a_table_without_images(issues: LabelIssues) -> None:
    page = issues.show(3)._repr_html_()
    assert page.count("<tr>") == 1 + 3
    assert page.count("<tr>") + 2 == issues._repr_html_().count("<tr>")
    assert "&lt;red&gt;" in page
    assert "<red>" not in page


def test_a_notebook_shows_each_image_next_to_its_reason(issues: LabelIssues) -> None:
    images, _ = colored()
    page = issues.show(2, images=images)._repr_html_()
    assert page.count("data:image/jpeg;base64,") == page.count("<article") == 2
    assert "<s>blue</s> → <b>&lt;red&gt;</b>" in page
    assert issues.reason[4].replace("<", "&lt;").replace(">", "&gt;") in page
    assert page == issues.show(2, images=[Image.fromarray(pixels) for pixels in images])._repr_html_()


def test_a_label_that_is_the_suggested_one_is_not_struck_out() -> None:
    images, labels = colored()
    result = find_issues(labels, np.where(np.eye(2)[(labels == "red").astype(int)] > 0, 0.9, 0.1))
    page = result.show(30, images=images)._repr_html_()
    assert "<s>" not in page
    assert page.count("<b>red</b>") == page.count("<b>blue</b>") == 15


def test_what_cannot_be_shown_is_refused(issues: LabelIssues) -> None:
    images, _ = colored()
    with pytest.raises(InputError, match=r"^n: 0"):
        issues.show(0)
    for wrong in (images[:-1], images.astype(float), images[..., 0], list(range(30))):
        with pytest.raises(InputError, match=r"^images: "):
            issues.show(images=wrong)
