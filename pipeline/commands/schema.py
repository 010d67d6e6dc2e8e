"""`python -m pipeline schema`: write the JSON schema with which editors complete and check params.yaml."""

import argparse
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.artifacts.files import write_json
from pipeline.commands import command_parser
from pipeline.config.base import Section
from pipeline.config.params import Params

# Pydantic uses these names for bounds if a validator runs before that of the type (base.Int).
_KEYWORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_IN_CLONE = Path("presets/params.schema.json")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("schema", __doc__)
    parser.add_argument(
        "--out", type=Path, help=f"file to write (default: {_IN_CLONE} where it exists, else {_IN_CLONE.name})"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the schema, which presets and params.yaml name in their first line.

    Returns:
        0.
    """
    out: Path | None = make_parser().parse_args(argv).out
    if out is None:
        out = _IN_CLONE if _IN_CLONE.is_file() else Path(_IN_CLONE.name)
    write_json(out, params_schema())
    print(f"{out}: written")
    return 0


def params_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of params.yaml.

    It has no rules between keys; `validate` checks those too.
    """
    schema: dict[str, Any] = _rename_bounds(Params.model_json_schema())
    sections: dict[str, Any] = schema["$defs"]
    for section in (schema, *sections.values()):
        _take_attributes(section)
    for model in _models(Section):
        _describe_properties(sections.get(model.__name__, schema if model is Params else {}), model)
    # A study's recipe may have any keys of the section `train`.
    recipe = sections["Study"]["properties"]["recipe"]
    recipe.update(additionalProperties=False, properties=sections["TrainConfig"]["properties"])
    return schema


def _rename_bounds(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_rename_bounds(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {_KEYWORDS.get(key, key): _rename_bounds(part) for key, part in schema.items()}


def _models(base: type[Section]) -> Iterator[type[Section]]:
    for model in base.__subclasses__():
        yield model
        yield from _models(model)


def _take_attributes(section: dict[str, Any]) -> None:
    """Remove `Attributes:` from a model's description; `_describe_properties` adds it to the properties."""
    text = section.pop("description", "").partition("\n\nAttributes:\n")[0]
    if text:
        section["description"] = " ".join(text.split())


def _describe_properties(section: dict[str, Any], model: type[Section]) -> None:
    """Copy the `Attributes:` of a model and of its bases to its properties, where editors show them."""
    for base in reversed(model.__mro__):
        attributes = inspect.cleandoc(base.__doc__ or "").partition("\n\nAttributes:\n")[2]
        for name, description in re.findall(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", attributes, flags=re.MULTILINE):
            if name in section.get("properties", {}):
                section["properties"][name]["description"] = " ".join(description.split())
