"""Pydantic's validation errors as one line a person can act on."""

import difflib
import json
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError


def describe(error: ValidationError, tree: Any, model: type[BaseModel]) -> str:
    """The first problem of `error` as `key.path: value is wrong: mend`.

    Args:
        error: raised when `model` was validated on `tree`.
    """
    # A misspelt key is also a missing one; its own name says more.
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    places = [_written_keys(problem["loc"], tree, missing=problem["type"] == "missing") for problem in problems]
    problem, keys = problems[0], places[0]
    where = ".".join(str(key) for key in keys) or "(top level)"
    # A value that fits no member of a union has one problem for each of them.
    same = [other for other, place in zip(problems, places, strict=True) if place == keys]
    more = f" (and {len(problems) - len(same)} more)" if len(problems) > len(same) else ""
    match problem["type"]:
        case "extra_forbidden":
            return f"{where}: unknown key{_suggestion(keys, model)}{more}"
        case "missing":
            return f"{where}: missing; add it{more}"
        case "union_tag_not_found":
            return f"{where}: says no {problem['ctx']['discriminator']}; add it{more}"
        case "value_error":
            return f"{where}: {problem['msg'].removeprefix('Value error, ')}{more}"
        case _:
            value = json.dumps(problem["input"], default=str)[:80]
            mend = ", or ".join(dict.fromkeys(other["msg"] for other in same))
            return f"{where}: {value} is not allowed: {mend}{more}"


def _written_keys(location: tuple[int | str, ...], tree: Any, *, missing: bool) -> list[int | str]:
    """The parts of a location that stand in the file; pydantic adds the names of union members."""
    keys: list[int | str] = []
    for part in location:
        written = part in tree if isinstance(tree, dict) else isinstance(tree, list) and isinstance(part, int)
        if written:
            keys.append(part)
            tree = tree[part]
    return [*keys, location[-1]] if missing else keys


def _suggestion(keys: list[int | str], model: type[BaseModel]) -> str:
    candidates = [model]
    for key in keys[:-1]:
        candidates = [
            inner
            for candidate in candidates
            for inner in _models_in(
                candidate.model_fields[str(key)].annotation if str(key) in candidate.model_fields else candidate
            )
        ]
    known = sorted({name for candidate in candidates for name in candidate.model_fields})
    if str(keys[-1]) in known:
        return "; it does not belong to the variant that this section names"
    close = difflib.get_close_matches(str(keys[-1]), known, n=1)
    return f"; did you mean `{close[0]}`?" if close else f"; known here: {', '.join(known)}"


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """All section models that a type annotation speaks of, in unions and containers too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
