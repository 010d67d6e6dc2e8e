"""`python -m pipeline preset NAME`: write params.yaml from a preset, unless that would lose edits."""

import argparse
import os
from collections.abc import Collection, Sequence
from pathlib import Path

from pipeline.artifacts.files import write_text
from pipeline.commands import command_parser
from pipeline.commands.starting.packaged import folder_here_or_packaged
from pipeline.config.params import load_params
from pipeline.config.yaml_reading import read_yaml_text
from pipeline.errors import InputError

_HERE = Path("presets")
_SCHEMA = "params.schema.json"
_MODELINE = "# yaml-language-server:"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("preset", __doc__)
    parser.add_argument("name", nargs="?", help="name of a file in presets/; without it the presets are listed")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="file to write")
    parser.add_argument(
        "--presets", type=Path, help="folder of the presets (default: presets/, without it those of the package)"
    )
    parser.add_argument("--force", action="store_true", help="write even if edits are lost")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write params.yaml, or list the presets without a name.

    Returns:
        0.

    Raises:
        InputError: as `apply_preset`, or there is no such preset.
    """
    arguments = make_parser().parse_args(argv)
    folder = arguments.presets or folder_here_or_packaged("presets")
    presets = {path.stem: path for path in sorted(folder.glob("*.yaml"), key=lambda path: path.stem)}
    if arguments.name is None:
        for name, path in presets.items():
            print(f"{name:10} {summary(read_yaml_text(path))}")
        return 0
    if arguments.name not in presets:
        raise InputError(f"preset {arguments.name}: not in {folder}/; give one of {list(presets)}")
    apply_preset(presets[arguments.name], arguments.params, presets=presets.values(), force=arguments.force)
    print(f"{arguments.params}: now the preset {arguments.name}")
    return 0


def apply_preset(preset: Path, target: Path, *, presets: Collection[Path], force: bool) -> None:
    """Write `preset` to `target`.

    Raises:
        InputError: `preset` is not valid; or `target` equals none of `presets`, and `force` is False.
    """
    load_params(preset)
    unedited = {_body(read_yaml_text(path)) for path in presets}
    if target.exists() and not force and _body(read_yaml_text(target)) not in unedited:
        keep = f"`cp {target} {preset.with_name('mine.yaml')}`, or" if preset.parent == _HERE else "a copy, and"
        raise InputError(f"{target}: has edits that would be lost; keep them with {keep} add --force to discard them")
    here = target.with_name(_SCHEMA)
    schema = os.path.relpath(here if here.is_file() else preset.parent / _SCHEMA, target.parent)
    write_text(target, f"{_MODELINE} $schema={schema}\n{_body(read_yaml_text(preset))}")


def summary(text: str) -> str:
    """Return the first sentence of a preset's first comment."""
    lines = []
    for line in _body(text).splitlines():
        if not line.startswith("# "):
            break
        lines.append(line.removeprefix("# "))
    return " ".join(lines).split(". ")[0].removesuffix(".")


def _body(text: str) -> str:
    """Return the text without the editor's line, which names the schema relative to the file."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(_MODELINE))
