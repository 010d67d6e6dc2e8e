"""Colors mean one thing, and readers with each kind of color blindness tell those of one group apart."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.figures import palette
from pipeline.figures.style import LineKey, line_styles

_ROOT = Path(__file__).parents[3]
_WHITE, _DARK_PAGES = "#ffffff", ("#1d2128", "#17191c")

_GROUPS: Mapping[str, Sequence[str]] = {
    "decisions": [*palette.DECISIONS.values(), *(set(palette.DROPPED_SHADES) - {palette.DROPPED})],
    "arms": [*palette.ARMS.values(), palette.ALL_ARMS],
    "comparison": [palette.ONLY_A, palette.ONLY_B],
    "agreement": [palette.CONTRADICTED, palette.AGREED],
    "series": palette.SERIES,
    "classes": [*palette.CLASSES, palette.NOISE, palette.SMALL_CLUSTERS],
    "marks": [palette.CHOSEN, palette.MARK],
    "outcomes": [color for pair in palette.OUTCOMES.values() for color in pair],
}

# Of linear RGB. G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, "A physiologically-based model for simulation of
# color vision deficiency", IEEE TVCG 15(6) (2009), severity 1.
_VISION = {
    "normal": np.eye(3),
    "protanopia": np.array([
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998],
    ]),
    "deuteranopia": np.array([
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881],
    ]),
    "tritanopia": np.array([
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900],
    ]),
}  # fmt: skip
# B. Ottosson, "A perceptual color space for image processing" (2020): Oklab.
_TO_CONES = np.array([
    [0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
])  # fmt: skip
_TO_OKLAB = np.array([
    [0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
])  # fmt: skip


def _linear(color: str) -> NDArray[np.float64]:
    values = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _seen(color: str, vision: str) -> NDArray[np.float64]:
    """Return the color as a viewer sees it, in Oklab times 100: two differ visibly from about 2 on."""
    linear = np.clip(_VISION[vision] @ _linear(color), 0, 1)
    seen: NDArray[np.float64] = 100 * (_TO_OKLAB @ np.cbrt(_TO_CONES @ linear))
    return seen


def _least_difference(pairs: Iterable[tuple[str, str]], vision: str) -> float:
    return min(float(np.linalg.norm(_seen(one, vision) - _seen(other, vision))) for one, other in pairs)


def _contrast(color: str, page: str) -> float:
    """Return the ratio of luminances of the Web Content Accessibility Guidelines, at least 1."""
    low, high = sorted(float(_linear(one) @ [0.2126, 0.7152, 0.0722]) for one in (color, page))
    return (high + 0.05) / (low + 0.05)


def test_no_color_has_two_meanings() -> None:
    meanings: dict[str, str] = {}
    for group, colors in _GROUPS.items():
        for color in colors:
            assert meanings.setdefault(color, group) == group, color
        assert len(set(colors)) == len(colors), group


def test_every_group_of_the_module_is_tested() -> None:
    source = (_ROOT / "pipeline/figures/palette.py").read_text()
    assert set(re.findall(r"#[0-9a-f]{6}", source)) == {color for colors in _GROUPS.values() for color in colors}


@pytest.mark.parametrize("vision", _VISION)
def test_every_viewer_tells_the_colors_of_a_group_apart(vision: str) -> None:
    main = [palette.ARMS[arm] for arm in ("full", "filtered", "random")]
    assert _least_difference(combinations(main, 2), vision) > 10
    assert _least_difference(combinations(palette.ARMS.values(), 2), vision) > 7
    assert _least_difference(combinations(palette.DECISIONS.values(), 2), vision) > 7
    assert _least_difference(combinations(palette.SERIES, 2), vision) > 9
    compared = (palette.KEPT, palette.ONLY_A, palette.ONLY_B, palette.DROPPED)
    assert _least_difference(combinations(compared, 2), vision) > 10


@pytest.mark.parametrize("vision", _VISION)
def test_every_viewer_tells_arms_from_decisions(vision: str) -> None:
    decisions = (palette.KEPT, palette.DROPPED)
    assert _least_difference(product(palette.ARMS.values(), decisions), vision) > 7


@pytest.mark.parametrize("group", ["arms", "series"])
def test_lines_stand_out_from_light_and_dark_pages(group: str) -> None:
    for color in _GROUPS[group]:
        assert min(_contrast(color, page) for page in (_WHITE, *_DARK_PAGES)) > 2.2, color


@pytest.mark.parametrize(
    ("group", "least"), [("decisions", 1.8), ("comparison", 1.8), ("agreement", 1.8), ("marks", 3.5), ("classes", 1.4)]
)
def test_points_stand_out_from_the_map_in_light_and_dark(group: str, least: float) -> None:
    """Classes are too many: the lightest of the scheme has 1.6 on white paper."""
    maps = re.findall(r"#[0-9a-f]{6}", dict(_declared("viz/assets/base.css"))["map"])
    assert len(maps) == 2
    for color, background in product(_GROUPS[group], maps):
        assert _contrast(color, background) > least, (color, background)


def test_verdicts_are_legible_on_their_pages() -> None:
    for outcome, (light, dark) in palette.OUTCOMES.items():
        assert _contrast(light, _WHITE) > 4.5, outcome
        assert _contrast(dark, _DARK_PAGES[0]) > 4.5, outcome


def test_lines_of_arms_have_the_colors_of_arms() -> None:
    for arm, color in palette.ARMS.items():
        keys = [LineKey(arm), LineKey("full"), LineKey("filtered")]
        assert line_styles([keys[0]])[keys[0]].color == line_styles(keys)[keys[0]].color == color
    variants = [LineKey("full", variant) for variant in ("lr 0.1", "lr 0.2")]
    assert [style.color for style in line_styles(variants).values()] == list(palette.SERIES[:2])


def _declared(path: str) -> list[tuple[str, str]]:
    """Return the custom properties of a style sheet with their values, in order."""
    return re.findall(r"--([\w-]+): ([^;}]+);", (_ROOT / path).read_text())


def test_style_sheets_repeat_the_palette() -> None:
    report, app = _declared("pipeline/reporting/style.css"), dict(_declared("viz/assets/base.css"))
    for outcome, colors in palette.OUTCOMES.items():
        assert tuple(value for name, value in report if name == outcome) == colors
    assert (app["kept"], app["dropped"]) == (palette.KEPT, palette.DROPPED)
    assert app["contradicts"].startswith(f"light-dark({palette.CONTRADICTED},")


def test_colors_of_the_palette_are_written_nowhere_else() -> None:
    named = "|".join([*palette.OUTCOMES, "kept", "dropped", "contradicts"])
    # Gray text is no code.
    colors = {color for group in _GROUPS.values() for color in group} - set(palette.OUTCOMES["undecided"])
    folders, kinds = ("pipeline", "viz", "batchsieve"), {".py", ".css", ".js", ".html"}
    files = [path for folder in folders for path in (_ROOT / folder).rglob("*") if path.suffix in kinds]
    assert len(files) > 100
    for path in files:
        if path.name != "palette.py":
            text = re.sub(rf"--({named}): [^;}}]+;", "", path.read_text())
            assert not colors.intersection(re.findall(r"#[0-9a-f]{6}\b", text)), path
