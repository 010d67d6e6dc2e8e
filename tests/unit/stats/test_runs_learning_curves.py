"""Mean curves of runs with records at different steps."""

from dataclasses import replace

import pytest

from pipeline.stats.runs import learning_curves
from tests.fixtures.runs import made_run


def test_means_are_over_finished_seeds_and_bridge_nonfinite_values() -> None:
    whole = replace(made_run("full", 0, 0.5), history=((32, 2.0), (64, 1.0), (96, 0.5)))
    infinite_once = replace(made_run("full", 1, 0.5), history=((32, 3.0), (64, None), (96, 1.0)))
    diverged = replace(made_run("full", 2, None), history=((32, 9.0),))
    (curve,) = learning_curves([whole, infinite_once, diverged], "train_loss", ())
    assert (curve["arm"], curve["batch_size"], curve["n"], curve["examples"]) == ("full", 32, 2, [32, 64, 96])
    assert curve["values"] == pytest.approx([2.5, 1.5, 0.75])


def test_draws_of_unlike_numbers_of_images_are_one_curve() -> None:
    """Lines of one slope through records at unlike steps."""
    draws = [
        replace(made_run("filtered", 0, 0.5, network=name), history=tuple((at, 2 - at / 1000) for at in records))
        for name, records in (("resnet18", (100, 200, 300, 400)), ("resnet18-r1", (90, 190, 290, 390)))
    ]
    (curve,) = learning_curves(draws, "train_loss", ())
    assert (curve["n"], curve["examples"]) == (2, [100, 200, 300])
    assert curve["values"] == pytest.approx([1.9, 1.8, 1.7])


def test_accuracy_is_a_curve_only_with_values_before_the_last_step() -> None:
    history = ((320, 1.0),)
    on_the_way = [
        replace(made_run("full", seed, top1), history=history, accuracy=((160, top1 / 2),))
        for seed, top1 in enumerate((0.4, 0.6))
    ]
    at_its_end = replace(made_run("random", 0, 0.5), history=history)
    (curve,) = learning_curves([*on_the_way, at_its_end], "top1", ())
    assert (curve["arm"], curve["examples"]) == ("full", [160, 320])
    assert curve["values"] == pytest.approx([0.25, 0.5])


def test_a_test_loss_is_of_the_runs_that_measured_it() -> None:
    history = ((320, 1.0),)
    measured = [
        replace(made_run("full", seed, 0.5), loss=loss, history=history, test_loss=((160, 2 * loss),))
        for seed, loss in enumerate((0.4, 0.6))
    ]
    never_finite = replace(made_run("full", 2, 0.5), history=history, accuracy=((160, 0.1),))
    (curve,) = learning_curves([*measured, never_finite], "test_loss", ())
    assert (curve["n"], curve["examples"]) == (2, [160, 320])
    assert curve["values"] == pytest.approx([1.0, 0.5])


def test_the_horizontal_axis_may_be_steps_or_epochs_of_the_arm() -> None:
    runs = [
        replace(made_run(arm, 0, 0.5), n_train=n_train, history=((320, 2.0), (640, 1.0)))
        for arm, n_train in (("filtered", 80), ("full", 100))
    ]
    steps = learning_curves(runs, "train_loss", (), "steps")
    assert [(curve["examples"], curve["x"]) for curve in steps] == [([320, 640], [10, 20])] * 2
    epochs = learning_curves(runs, "train_loss", (), "epochs")
    assert {curve["arm"]: curve["x"] for curve in epochs} == {"filtered": [4, 8], "full": [3.2, 6.4]}
    assert all("x" not in curve for curve in learning_curves(runs, "train_loss", ()))
