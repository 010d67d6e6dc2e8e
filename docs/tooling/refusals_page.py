"""Write docs/reference/refused-input.md: bad input and the line that it ends in, from the golden files of the tests.

python docs/tooling/refusals_page.py
"""

from pathlib import Path

_DOCS = Path(__file__).resolve().parents[1]
GOLDEN = _DOCS.parent / "tests" / "golden"
PAGE = _DOCS / "reference" / "refused-input.md"
# Heading -> golden files. A line of a file is `case -> message`, or the message alone.
_SECTIONS = {
    "Folders of images": ("refused_folders", "refused_layouts", "refused_classes"),
    "Images": ("refused_images", "refused_unreadable_images"),
    "Archives": ("refused_archive_names", "refused_archive_members"),
    "metadata.csv": ("metadata_csv_refusals",),
    "Parquet shards": ("parquet_refusals",),
    "Label files": ("refused_label_files",),
    "Overrides": ("refused_overrides",),
    "Features of your own": ("refused_features", "filter_features_images", "refused_probes"),
    "Weights": ("refused_weights", "weights_errors"),
    "Runs of another machine": ("refused_runs",),
    "Tables of runs": ("compare_table_refusals",),
    "Parameters": ("params_errors", "refused_yaml", "refused_reduce_settings", "refused_changes"),
    "Searches": ("tuning_errors",),
}
_INTRODUCTION = """# Refused input

<!-- Written by `make docs` from tests/golden; do not edit. -->

{count} kinds of bad input, and the line in which each ends. A command prints it after `error: `, exits with 2 and
writes nothing. Tests make each input and compare the line. FOLDER, PHOTOS, x and here stand for a path.
"""


def refusals_page(folder: Path) -> str:
    """Markdown of the golden files in `folder`, a table for each kind of input."""
    sections, count = [], 0
    for heading, files in _SECTIONS.items():
        rows = [_row(line) for name in files for line in (folder / f"{name}.txt").read_text("utf-8").splitlines()]
        sections.append("\n".join([f"## {heading}", "", "| input | line |", "|---|---|", *rows, ""]))
        count += len(rows)
    return "\n".join([_INTRODUCTION.format(count=count), *sections])


def _row(line: str) -> str:
    case, _, message = line.rpartition(" -> ")
    # An input that is a setting is code, and another one words.
    shown = _code(case) if "=" in case else case.replace("|", "\\|")
    return f"| {shown} | {_code(message.removeprefix('error: '))} |"


def _code(text: str) -> str:
    """Return `text` as code in a cell, whatever backticks and bars it has."""
    text = text.replace("|", "\\|")
    return f"`` {text} ``" if "`" in text else f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(refusals_page(GOLDEN), encoding="utf-8")
    print(f"{PAGE.relative_to(_DOCS.parent)}: written")
