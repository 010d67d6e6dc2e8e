import numpy as np

from pipeline.figures.batch_curves import ScalingCurve, scaling_figure
from pipeline.figures.rendering import svg

_CURVE = ScalingCurve(gpus=[1, 8], images_per_second=[100.0, 700.0], efficiency=[1.0, 0.875], hours=[8.0, 1.14])


def test_four_panels_show_their_values_under_the_title_simulated() -> None:
    figure = scaling_figure({"ring": _CURVE}, {"batch 64": _CURVE}, title="SIMULATED: a network on a machine")
    assert figure.get_suptitle() == "SIMULATED: a network on a machine"
    drawn = [np.asarray(panel.lines[0].get_ydata()).tolist() for panel in figure.axes]
    assert drawn == [[100.0, 700.0], [100.0, 87.5], [100.0, 87.5], [8.0, 1.14]]


def test_equal_figures_are_equal_bytes_and_empty_ones_can_be_drawn() -> None:
    first, second = (svg(scaling_figure({"ring": _CURVE}, {"batch 64": _CURVE}, title="x")) for _ in range(2))
    assert first == second
    assert svg(scaling_figure({"ring": _CURVE}, {}, title="x"))


def test_throughput_and_time_are_on_log_axes_without_formulas() -> None:
    wide = ScalingCurve(
        gpus=[1, 6, 1536, 27600],
        images_per_second=[380.0, 2e3, 5e5, 1e7],
        efficiency=[1.0] * 4,
        hours=[84, 14, 0.1, 3e-3],
    )
    figure = scaling_figure({"ring": wide}, {"batch 64": wide}, title="x")
    assert "mathdefault" not in svg(figure).decode()
    assert [panel.get_yscale() for panel in figure.axes] == ["log", "linear", "linear", "log"]
