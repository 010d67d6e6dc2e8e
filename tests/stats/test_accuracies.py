import numpy as np
import pytest
from made_up_runs import made_draws, made_runs

from pipeline.stats.accuracies import arm_accuracies


def test_accuracy_counts_finished_and_planned_seeds() -> None:
    (found,) = arm_accuracies(made_runs({"full": [0.8, 0.9, None]}), 0.95)
    assert found.top1 is not None
    assert (found.top1.n, found.planned) == (2, 3)
    assert found.top1.mean == pytest.approx(0.85)
    assert found.balanced_accuracy == pytest.approx(0.85)


def test_an_arm_of_which_nothing_finished_has_none() -> None:
    assert {row.top1 for row in arm_accuracies(made_runs({"filtered": [None, None], "full": [None]}), 0.95)} == {None}


def test_accuracies_come_by_setting_and_then_in_the_studys_order_of_arms() -> None:
    study = made_runs({"random": [0.8], "full": [0.8]}, 64) + made_runs({"random": [0.8], "full": [0.8]}, 32)
    found = [(row.setting.batch_size, row.arm) for row in arm_accuracies(study, 0.95)]
    assert found == [(32, "random"), (32, "full"), (64, "random"), (64, "full")]


def test_draws_of_the_filter_count_once_each() -> None:
    (found,) = arm_accuracies(made_draws({"filtered": {"resnet18": [0.90, 0.92], "resnet18-r1": [0.86, 0.84]}}), 0.95)
    assert found.top1 is not None
    assert (found.top1.n, found.planned) == (2, 2)
    assert found.top1.sd == pytest.approx(np.std([0.91, 0.85], ddof=1))
