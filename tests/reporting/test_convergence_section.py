"""What the report says of steps and images to a training loss."""

from pathlib import Path

import pytest
from made_up_report import params_tree, write_artifacts

from pipeline.config.params import Params, check_params
from pipeline.paths import DataPaths
from pipeline.reporting.content import report_content
from pipeline.reporting.inputs import load_inputs
from pipeline.reporting.summary import build_summary


def _params(target: float | None) -> Params:
    tree = params_tree()
    tree["report"]["target_train_loss"] = target
    return check_params(tree, source="params.yaml")


def test_each_arm_has_a_row_and_each_comparison_a_sentence(tmp_path: Path) -> None:
    params, data = _params(1.0), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    (study,) = report_content(params, build_summary(load_inputs(params, data)), {}, [])["studies"]
    table, sentences = study["convergence_table"], study["convergence_sentences"]
    assert list(table.columns) == ["batch size", "arm", "steps", "images", "runs that reached it"]
    assert len(table.rows) == 9
    # Of 2.3 / step + seed / 10 the records are at steps 1, 15 and 45.
    assert {row[-1] for row in table.rows} == {"3 of 3"}
    assert len(sentences) == 2
    assert sentences[0].startswith("filtered against random to a training loss of 1: undecided (1.00 times as many")


@pytest.mark.parametrize(("target", "said"), [(0.001, "0 of 3"), (None, None)])
def test_what_was_not_reached_is_said_and_what_was_not_asked_is_not(
    tmp_path: Path, target: float | None, said: str | None
) -> None:
    params, data = _params(target), DataPaths(root=tmp_path)
    write_artifacts(data, params)
    (study,) = report_content(params, build_summary(load_inputs(params, data)), {}, [])["studies"]
    if said is None:
        assert study["convergence_table"] is None
        assert study["convergence_sentences"] == []
        return
    assert {row[-1] for row in study["convergence_table"].rows} == {said}
    assert all("nothing to compare" in sentence for sentence in study["convergence_sentences"])
