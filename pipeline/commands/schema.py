"""`python -m pipeline schema`: the JSON schema by which editors complete and check params.yaml."""

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

# Pydantic writes bounds under its own names where a validator runs before the type's (base.Int).
_KEYWORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("schema", __doc__)
    parser.add_argument("--out", type=Path, default=Path("presets/params.schema.json"), help="file to write")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the schema that presets and params.yaml name in their first line."""
    out: Path = make_parser().parse_args(argv).out
    write_json(out, params_schema())
    print(f"{out}: written")
    return 0


def params_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of params.yaml.

    The rules between keys are not in it; `validate` knows them all.
    """
    schema: dict[str, Any] = _rename_bounds(Params.model_json_schema())
    sections: dict[str, Any] = schema["$defs"]
    for section in (schema, *sections.values()):
        _take_attributes(section)
    for model in _models(Section):
        _describe_properties(sections.get(model.__name__, schema if model is Params else {}), model)
    # A study's recipe is any part of the train section.
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
    """Keep the text of a model's docstring and leave its `Attributes:` to its properties."""
    text = section.pop("description", "").partition("\n\nAttributes:\n")[0]
    if text:
        section["description"] = " ".join(text.split())


def _describe_properties(section: dict[str, Any], model: type[Section]) -> None:
    """Copy the `Attributes:` of a model and of its bases to its properties, where editors show them."""
    for base in reversed(model.__mro__):
        attributes = inspect.cleandoc(base.__doc__ or "").partition("\n\nAttributes:\n")[2]
        for name, meaning in re.findall(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", attributes, flags=re.MULTILINE):
            if name in section.get("properties", {}):
                section["properties"][name]["description"] = " ".join(meaning.split())
