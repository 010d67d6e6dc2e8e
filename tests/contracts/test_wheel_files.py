"""The wheel has the files of a project where the commands read them."""

import ast

from pipeline import commands
from tests.fixtures.projects import ROOT


def test_setup_fills_the_folder_that_commands_read() -> None:
    # Parsed: setuptools replaces distutils for the whole process when it is imported.
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    (target,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "_TARGET"
        and isinstance(node.value, ast.Call)
    ]
    parts = [ast.literal_eval(part) for part in target.args]
    assert ROOT.joinpath(*parts) == commands._IN_WHEEL
