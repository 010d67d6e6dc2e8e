"""Text in CSV files that people open in a spreadsheet, which runs some cells as formulas."""

import pyarrow as pa
import pyarrow.compute as pc

# OWASP, "CSV Injection"; full-width signs act alike in some locales. The apostrophe makes the way back unique.
_STARTS = r"^[=+\-@＝＋－＠\t\r\n']"


def protect_cells(table: pa.Table) -> pa.Table:
    """Put an apostrophe before each text that a spreadsheet could run, and before each that starts with one."""
    return _replace_texts(table, _STARTS, r"'\0")


def restore_cells(table: pa.Table) -> pa.Table:
    """Return the texts before `protect_cells`; texts that were never protected stay, unless an apostrophe is first."""
    return _replace_texts(table, "^'", "")


def _replace_texts(table: pa.Table, pattern: str, replacement: str) -> pa.Table:
    for number, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            replaced = pc.replace_substring_regex(table[number], pattern=pattern, replacement=replacement)
            table = table.set_column(number, field.name, replaced)
    return table
