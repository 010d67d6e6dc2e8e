"""Write docs/reference/params.md: every key of params.yaml, from the JSON schema that editors use.

python docs/tooling/params_page.py
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DOCS = Path(__file__).resolve().parents[1]
SCHEMA = _DOCS.parent / "presets" / "params.schema.json"
PAGE = _DOCS / "reference" / "params.md"
# As params.yaml has them.
_SECTIONS = (
    "prepare", "networks", "finetune", "extract", "reduce", "filter", "train", "studies", "report", "dask", "tuning",
)  # fmt: skip
_INTRODUCTION = """# Parameters

<!-- Written by `make docs` from presets/params.schema.json; do not edit. -->

Every key of params.yaml, by section. `python -m pipeline validate` also checks the rules between keys. Keys without a
default are required.
"""
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "minLength": "length ≥"}


def params_page(schema: dict[str, Any]) -> str:
    """Markdown of a JSON schema (draft 2020-12) of params.yaml.

    Args:
        schema: with models in `$defs` and the sections as its properties.

    Raises:
        ValueError: a section is not among those that the page has, or is missing.
    """
    if set(schema["properties"]) != set(_SECTIONS):
        raise ValueError(f"sections: {sorted(set(schema['properties']) ^ set(_SECTIONS))} differ; edit _SECTIONS")
    models: dict[str, Any] = schema["$defs"]
    headings: dict[str, str] = {}
    # Recipes share models; those of `train` describe them.
    for section in ("train", *_SECTIONS):
        node = schema["properties"][section]
        named = f"{section}.<name>" if "patternProperties" in node else section
        for model in _models_of(node):
            _name_models(model, named, models, headings)
    lines = [_INTRODUCTION]
    for section in _SECTIONS:
        node = schema["properties"][section]
        if not any(_models_of(node)):
            lines += [f"## {section}", "", f"{_type_of(node, headings)}. {_sentence(node)}", ""]
        for model, heading in headings.items():
            if re.match(rf"{section}\b", heading):
                lines += _lines_of(models[model], heading, models["TrainConfig"]["properties"], headings)
    return "\n".join(lines)


def _name_models(name: str, heading: str, models: dict[str, Any], headings: dict[str, str]) -> None:
    """Give a model, and those that it refers to, the heading of the key that is the first to use it."""
    if name in headings:
        return
    headings[name] = heading
    for key, node in models[name].get("properties", {}).items():
        for inner in [] if key == "recipe" else _models_of(node):
            variant = models[inner].get("properties", {}).get("name", {}).get("const")
            _name_models(inner, f"{heading}.{key}" + (f": {variant}" if variant else ""), models, headings)


def _lines_of(model: dict[str, Any], heading: str, train: dict[str, Any], headings: dict[str, str]) -> list[str]:
    """A heading, the description, and a table with a row for each key."""
    level = "##" if re.fullmatch(r"\w+(\.<name>)?", heading) else "###"
    lines = [f"{level} {_escaped(heading)}", ""]
    if description := _sentence(model):
        lines += [description, ""]
    rows = []
    for key, node in model.get("properties", {}).items():
        if "const" in node:
            continue
        required = key in model.get("required", ())
        default = "required" if required else _default_of(node)
        value = "mapping of keys of [train](#train)" if key == "recipe" else _type_of(node, headings)
        meaning = _sentence(node) or ("As in [train](#train)." if key in train and heading != "train" else "")
        cells = [cell.replace("|", "\\|") for cell in (f"`{key}`", value, default, meaning)]
        rows.append(f"| {' | '.join(cells)} |")
    table = ["| key | value | default | meaning |", "|---|---|---|---|", *rows] if rows else ["No keys."]
    return [*lines, *table, ""]


def _models_of(node: Any) -> Iterator[str]:
    """Names of the models that a node refers to, in order."""
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].rsplit("/", 1)[1]
        for key, part in node.items():
            if key not in ("discriminator", "default"):
                yield from _models_of(part)
    elif isinstance(node, list):
        for part in node:
            yield from _models_of(part)


def _type_of(node: dict[str, Any], headings: dict[str, str]) -> str:
    """What a value may be, in words; models as links."""
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[1]
        variant = headings[name].partition(": ")[2]
        text = "duration" if name == "Duration" else variant or "keys"
        return f"[{text}](#{_slug(headings[name])})"
    for choice in ("anyOf", "oneOf"):
        if choice in node:
            parts = [_type_of(part, headings) for part in node[choice]]
            return " or ".join(dict.fromkeys(parts))
    if "const" in node:
        return f"`{_yaml(node['const'])}`"
    if "enum" in node:
        return ", ".join(f"`{_yaml(value)}`" for value in node["enum"])
    if "patternProperties" in node or isinstance(node.get("additionalProperties"), dict):
        values = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
        (value,) = [part for part in values if isinstance(part, dict)]
        return f"mapping to {_type_of(value, headings)}"
    kind = node.get("type", "any value")
    if kind == "array":
        items = node.get("prefixItems") or [node["items"]]
        return "list of " + ", ".join(_type_of(part, headings) for part in items)
    if kind == "object":
        return "mapping"
    if "pattern" in node:
        return f"`{node['pattern']}`"
    # A key's own bound is the narrower one.
    bounds = [
        f"{sign} {node[bound]}"
        for bound, sign in _BOUNDS.items()
        if bound in node and not (bound == "exclusiveMinimum" and "minimum" in node)
    ]
    return " ".join([str(kind), ", ".join(bounds)]).strip()


def _default_of(node: dict[str, Any]) -> str:
    if "default" not in node:
        return ""
    # Of a model with keys of its own, whose table has the defaults.
    if isinstance(node["default"], dict) and "name" not in node["default"]:
        return "its keys' defaults"
    value = node["default"]["name"] if isinstance(node["default"], dict) else node["default"]
    return f"`{_yaml(value)}`"


def _sentence(node: dict[str, Any]) -> str:
    text = str(node.get("description", "")).strip()
    text = text[:1].upper() + text[1:]
    return _escaped(text)


def _escaped(text: str) -> str:
    """With brackets outside code that Markdown would take for a tag."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"<(\w+)>", r"\\<\1\\>", part) for part in parts[::2]]
    return "`".join(parts)


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _slug(heading: str) -> str:
    """The anchor that code hosts and the site give a heading."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower()))


if __name__ == "__main__":
    PAGE.write_text(params_page(json.loads(SCHEMA.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"{PAGE.relative_to(_DOCS.parent)}: written")
