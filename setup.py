"""Build the wheel with what a project outside a clone needs; pyproject.toml has everything else."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# pipeline.commands finds them there.
_TARGET = Path("pipeline", "commands", "project")
_FILES = ("dvc.yaml", "presets/*.yaml", "presets/*.json", "machines/*.yaml")


class BuildWithProjectFiles(build_py):
    """Copies files of the repository's root into the package; an editable installation reads them where they are."""

    def run(self) -> None:
        """Build the package, then copy."""
        super().run()
        if self.editable_mode:
            return
        for pattern in _FILES:
            for path in sorted(Path().glob(pattern)):
                target = Path(self.build_lib) / _TARGET / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


setup(cmdclass={"build_py": BuildWithProjectFiles})
