"""The settings of a run as plain values, as its key and its row in a table have them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pipeline.training.settings import TrainSettings

NEWER: Mapping[str, Any] = {"fast": False}
"""Settings that earlier versions did not have, and the value by which they would have acted."""


def recorded_settings(settings: TrainSettings) -> dict[str, Any]:
    """Return the items of the settings.

    One of `NEWER` is left out where it has that value, so that keys and tables of earlier versions stay the same.
    """
    values = dataclasses.asdict(settings)
    return {name: value for name, value in values.items() if name not in NEWER or value != NEWER[name]}
