"""The source tree, as git or the disk knows it."""

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def tracked():
    """Files of the project: those git knows or would add; without git, all in the tree that are no by-products."""
    found = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True,
        check=False)
    if found.returncode == 0:
        paths = [ROOT / name for name in found.stdout.splitlines()]
    else:
        skipped = {"__pycache__", "build", "dist"}
        paths = [path for path in ROOT.rglob("*") if not skipped.intersection(path.relative_to(ROOT).parts)]
    return sorted(path for path in paths if path.is_file())


@pytest.fixture(scope="session")
def files():
    return tracked()


@pytest.fixture(scope="session")
def python_files(files):
    return [path for path in files if path.suffix == ".py"]


@pytest.fixture(scope="session")
def clean_tree(files, tmp_path_factory):
    """A copy without by-products, to build from."""
    copy = tmp_path_factory.mktemp("clean")
    for path in files:
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return copy
