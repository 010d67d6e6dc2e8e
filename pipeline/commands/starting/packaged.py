"""Files at the root of the repository that a project outside a clone needs: presets, machines, dvc.yaml."""

from pathlib import Path

# setup.py copies them into the wheel; in a checkout, and in an editable installation, they are at its root.
_IN_WHEEL = Path(__file__).with_name("project")
_CHECKOUT = Path(__file__).resolve().parents[3]


def packaged_path(name: str) -> Path:
    """Return the file or folder `name`, such as `presets` or `dvc.yaml`, of the installed package or the checkout."""
    return (_IN_WHEEL if _IN_WHEEL.is_dir() else _CHECKOUT) / name


def folder_here_or_packaged(name: str) -> Path:
    """Return the folder `name` of the working folder; where there is none, that of the package."""
    here = Path(name)
    return here if here.is_dir() else packaged_path(name)
