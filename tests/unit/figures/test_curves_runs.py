from pipeline.figures.curves import RunCurve, RunCurves, run_chart
from pipeline.figures.rendering import plotly_html
from pipeline.figures.style import LineKey, line_styles

SOUND = RunCurve(name="seed 0", points=[(1, 2.0), (5, 1.0)], diverged=False)
BROKEN = RunCurve(name="seed 1, diverged", points=[(1, 2.0), (3, 4.0)], diverged=True)


def _line(mean: list[tuple[int, float]], runs: list[RunCurve]) -> RunCurves:
    key = LineKey("full")
    return RunCurves(key=key, style=line_styles([key])[key], mean=mean, runs=runs)


def test_thin_lines_are_runs_and_the_thick_one_their_mean() -> None:
    chart = run_chart([_line([(1, 2.0), (5, 1.0)], [SOUND, BROKEN])])
    first, second, mean = chart.data
    assert [trace.showlegend for trace in (first, second, mean)] == [False, False, None]
    assert first.line.width < mean.line.width
    assert {trace.line.color for trace in (first, second, mean)} == {first.line.color}
    assert (list(mean.x), list(mean.y)) == ([1, 5], [2.0, 1.0])


def test_a_cross_ends_a_run_that_diverged() -> None:
    sound, broken, _ = run_chart([_line([], [SOUND, BROKEN])]).data
    assert sound.mode == "lines"
    assert (broken.mode, broken.marker.symbol, list(broken.marker.size)) == ("lines+markers", "x", [0, 9])


def test_a_run_of_one_record_is_seen_and_one_of_none_is_no_error() -> None:
    single = RunCurve(name="seed 0", points=[(1, 2.0)], diverged=False)
    nothing = RunCurve(name="seed 1, diverged", points=[], diverged=True)
    chart = run_chart([_line([(1, 2.0)], [single, nothing])])
    assert [trace.mode for trace in chart.data] == ["lines+markers"] * 3
    assert plotly_html(chart, element_id="one")
    assert plotly_html(run_chart([]), element_id="none")
