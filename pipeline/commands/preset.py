"""`python -m pipeline preset NAME`: write params.yaml from a preset, unless that would lose edits."""

import argparse
import os
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from pipeline.artifacts.files import atomic_path
from pipeline.commands import command_parser, folder_here_or_packaged
from pipeline.config.params import check_params, load_params
from pipeline.config.yaml_reading import parse_yaml, read_yaml_text
from pipeline.errors import InputError

_HERE = Path("presets")
_SCHEMA = "params.schema.json"
_MODELINE = "# yaml-language-server:"
_SECTIONS = ("finetune", "train")
_ADDED = "# by preset --precision; part of the key of every run"
# Compute capability from which a GPU multiplies in the format.
_CAPABILITY = {"bf16": 8, "tf32": 8, "fp16": 7}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("preset", __doc__)
    parser.add_argument("name", nargs="?", help="name of a file in presets/; without it the presets are listed")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="file to write")
    parser.add_argument(
        "--presets", type=Path, help="folder of the presets (default: presets/, without it those of the package)"
    )
    parser.add_argument("--force", action="store_true", help="write even if edits are lost")
    parser.add_argument(
        "--precision", choices=[*_CAPABILITY],
        help="train in this precision, on a machine whose GPU computes it (default: as the preset says, fp32)",
    )  # fmt: skip
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
    if not presets:
        raise InputError(f"--presets {folder}: has no .yaml file; give a folder of presets, or leave it out")
    if arguments.name is None:
        for name, path in presets.items():
            print(f"{name:10} {summary(read_yaml_text(path))}")
        return 0
    if arguments.name not in presets:
        raise InputError(f"preset {arguments.name}: not in {folder}/; give one of {list(presets)}")
    precision: str | None = arguments.precision
    if precision is not None:
        _check_gpu(precision)
    apply_preset(
        presets[arguments.name], arguments.params, presets=presets.values(), force=arguments.force, precision=precision
    )  # fmt: skip
    added = f", with precision: {precision} in {' and '.join(_SECTIONS)}" if precision else ""
    print(f"{arguments.params}: now the preset {arguments.name}{added}")
    return 0


def apply_preset(
    preset: Path, target: Path, *, presets: Collection[Path], force: bool, precision: str | None = None
) -> None:
    """Write `preset` to `target`.

    Args:
        precision: of the sections that train; None leaves what the preset says.

    Raises:
        InputError: `preset` is not valid, or states another precision; or `target` equals none of `presets`, and
            `force` is False.
    """
    load_params(preset)
    unedited = {_body(read_yaml_text(path)) for path in presets}
    if target.exists() and not force and _body(read_yaml_text(target)) not in unedited:
        keep = f"`cp {target} {preset.with_name('mine.yaml')}`, or" if preset.parent == _HERE else "a copy, and"
        raise InputError(f"{target}: has edits that would be lost; keep them with {keep} add --force to discard them")
    here = target.with_name(_SCHEMA)
    schema = os.path.relpath(here if here.is_file() else preset.parent / _SCHEMA, target.parent)
    body = _body(read_yaml_text(preset))
    if precision is not None:
        body = with_precision(body, precision, source=str(preset))
    # A link stays a link, as in the visualizer.
    file = target.resolve()
    with atomic_path(file) as temporary:
        temporary.write_text(f"{_MODELINE} $schema={schema}\n{body}", encoding="utf-8", newline="\n")
        if file.exists():
            shutil.copymode(file, temporary)


def with_precision(text: str, precision: str, *, source: str) -> str:
    """Return the text of a preset with a precision as the first key of the sections that train.

    Raises:
        InputError: the preset states a precision, or a section is written on one line.
    """
    tree = parse_yaml(text, source=source)
    for section in _SECTIONS:
        if "precision" in tree[section]:
            raise InputError(f"{source}: {section}.precision: is {tree[section]['precision']}; leave out --precision")
        head = re.compile(rf"^{section}:[ \t]*(?:#.*?)?(\r?\n)", flags=re.MULTILINE)
        text = head.sub(rf"\g<0>  precision: {precision} {_ADDED}\1", text, count=1)
    changed = parse_yaml(text, source=source)
    for section in _SECTIONS:
        if changed[section].get("precision") != precision:
            raise InputError(
                f"{source}: {section}: its keys are not below it, so that none can be added; leave out --precision and "
                f"write precision: {precision} there"
            )
    check_params(changed, source=source)
    return text


def _check_gpu(precision: str) -> None:
    """Check that this machine trains in a precision: elsewhere it would be slow, or not take part."""
    import torch  # a second to import

    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] < _CAPABILITY[precision]:
        raise InputError(
            f"--precision: {precision}, but no GPU of compute capability {_CAPABILITY[precision]} or more is here; run "
            f"the command on the machine that trains, or write precision: {precision} by hand"
        )


def summary(text: str) -> str:
    """Return the first sentence of a preset's first comment."""
    lines = []
    for line in _body(text).splitlines():
        if not line.startswith("# "):
            break
        lines.append(line.removeprefix("# "))
    return " ".join(lines).split(". ")[0].removesuffix(".")


def _body(text: str) -> str:
    """Return the text without the editor's line, which names the schema relative to the file, and without additions."""
    # Some editors of Windows begin a file with a byte order mark.
    lines = text.removeprefix("\ufeff").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(_MODELINE) and _ADDED not in line)
