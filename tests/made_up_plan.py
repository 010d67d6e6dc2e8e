"""What tests of the plan share: a data set's size, a made-up speed, and the presets."""

from pathlib import Path

from made_up_params import PRESET

from pipeline.commands.planning.data import DataSize
from pipeline.commands.planning.speed import Speed
from pipeline.config.params import Params, load_params

_PRESETS = Path(__file__).parents[1] / "presets"
DIGITS = DataSize(n_train=1438, n_test=359, n_classes=10, source="counted")
SPEED = Speed(
    parts={8: 0.1, 32: 0.2, 128: 0.8},
    update_s=0.01,
    evaluation_s=1e-3,
    build_s=0.1,
    activation_bytes=1e5,
    weight_bytes=45_000_000,
)


def digits_params() -> Params:
    """tests/params.yaml."""
    return load_params(PRESET)


def preset(name: str) -> Params:
    """One of presets/."""
    return load_params(_PRESETS / f"{name}.yaml")
