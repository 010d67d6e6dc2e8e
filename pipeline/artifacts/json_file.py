"""JSON whose bytes depend on its values alone."""

import json
import math
from pathlib import Path
from typing import Any

from pipeline.artifacts.atomic import write_text
from pipeline.errors import InputError


def write_json(path: Path, value: Any) -> None:
    """Write `value` with sorted keys, atomically. NaN and infinity become null."""
    write_text(path, json.dumps(_finite(value), indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Raises InputError if the file is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: missing; run `dvc repro`") from None
    except ValueError:
        raise InputError(f"{path}: not readable as JSON; delete it and run `dvc repro`") from None


def _finite(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {str(key): _finite(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
        case _:
            return value
