"""The noise of single classes."""

import numpy as np
from matplotlib.collections import PathCollection

from pipeline.figures.classes import MAX_PANELS, class_panels, noisiest_classes
from pipeline.figures.rendering import png


def test_each_class_has_a_panel_with_its_own_images_noise_above() -> None:
    rng = np.random.default_rng(0)
    xy, labels = rng.normal(size=(60, 2)), np.repeat([0, 2], 30)
    noise = np.arange(60) % 10 == 0
    figure = class_panels(xy, labels, ["$a_", "empty", "<c>"], noise)
    panels = [axes for axes in figure.axes if axes.collections]
    assert [axes.get_title() for axes in panels] == ["$a_, 10.0 % noise", "<c>, 10.0 % noise"]
    for axes, label in zip(panels, (0, 2), strict=True):
        kept, dropped = (drawn for drawn in axes.collections if isinstance(drawn, PathCollection))
        np.testing.assert_array_equal(kept.get_offsets(), xy[(labels == label) & ~noise])
        np.testing.assert_array_equal(dropped.get_offsets(), xy[(labels == label) & noise])
    assert png(figure)


def test_of_many_classes_the_noisiest_are_shown() -> None:
    labels = np.repeat(np.arange(20), 10)
    noise = (np.arange(200) % 10) < labels // 4  # no noise in the first four classes, most in the last
    assert noisiest_classes(labels, noise) == list(range(20 - MAX_PANELS, 20))
    assert len(class_panels(np.zeros((200, 2)), labels, list(map(str, range(20))), noise).axes) == MAX_PANELS


def test_no_images_make_an_empty_figure() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert png(class_panels(np.zeros((0, 2)), nothing, ["a"], nothing.astype(bool)))
