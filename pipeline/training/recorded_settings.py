"""The settings of a run as plain values, for its key and its row in a table."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipeline.training.settings import TrainSettings

NEWER: Mapping[str, Any] = {"fast": False}
"""Settings that earlier versions lacked -> the value at which a run behaves as in those versions."""


def recorded_settings(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings by name.

    A setting of `NEWER` is left out if it has the value given there, so that keys and tables of earlier versions stay
    the same.
    """
    values = dataclasses.asdict(settings)
    return {name: value for name, value in values.items() if name not in NEWER or value != NEWER[name]}
