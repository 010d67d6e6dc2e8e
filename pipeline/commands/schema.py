"""`python -m pipeline schema`: the JSON schema by which editors complete and check params.yaml."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.artifacts.json_file import write_json
from pipeline.commands import command_parser
from pipeline.config.params import Params

# Pydantic writes bounds under its own names where a validator runs before the type's (base.Int).
_KEYWORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def make_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
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
        _describe_properties(section)
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


def _describe_properties(section: dict[str, Any]) -> None:
    """Move the `Attributes:` of a model's docstring to its properties, where editors show them."""
    text, _, attributes = section.pop("description", "").partition("\n\nAttributes:\n")
    if text:
        section["description"] = " ".join(text.split())
    for name, meaning in re.findall(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", attributes, flags=re.MULTILINE):
        section["properties"][name]["description"] = " ".join(meaning.split())
