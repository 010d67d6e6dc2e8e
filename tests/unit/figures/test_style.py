import colorsys

from pipeline.figures.palette import NOISE
from pipeline.figures.style import LineKey, class_color, line_styles

ARMS = ("full", "filtered", "random", "random_uniform")


def test_each_arm_has_one_look_whatever_else_is_drawn() -> None:
    everything = line_styles([LineKey(arm) for arm in ARMS])
    assert len({(style.color, style.marker) for style in everything.values()}) == len(ARMS)
    two = [LineKey("random"), LineKey("filtered")]
    assert line_styles(two) == {key: everything[key] for key in two}


def test_with_several_arms_the_dash_shows_the_variant() -> None:
    keys = [LineKey(arm, variant) for arm in ("full", "filtered") for variant in ("wd 0.005", "wd 0.01")]
    styles = line_styles(keys)
    assert len(set(styles.values())) == 4
    assert styles[keys[0]].color == styles[keys[1]].color
    assert styles[keys[0]].dash == styles[keys[2]].dash


def test_with_one_arm_fifteen_variants_still_look_different() -> None:
    keys = [LineKey("full", f"resnet{depth}, lr {rate}") for depth in range(5) for rate in range(3)]
    assert len(set(line_styles(keys).values())) == 15


def test_ten_classes_have_ten_colors_and_none_is_the_grey_of_noise() -> None:
    assert len({class_color(index) for index in range(10)}) == 10
    assert class_color(10) == class_color(0)
    saturation = [_saturation(class_color(index)) for index in range(10)]
    assert min(saturation) > 0.3 > _saturation(NOISE)


def _saturation(color: str) -> float:
    return colorsys.rgb_to_hsv(*(int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)))[1]
