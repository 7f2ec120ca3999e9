"""What a wheel and an sdist hold. That an installed wheel works is `.ci/run`'s to show."""

import pathlib
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ("specjax", "models", "checkpoints")
MAX_BYTES = 60_000_000


@pytest.fixture(scope="module")
def built(clean_tree, tmp_path_factory):
    """The sdist, and the wheel built from it."""
    out = tmp_path_factory.mktemp("dist")
    result = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(clean_tree)], cwd=out,
        capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return out


@pytest.fixture(scope="module")
def wheel(built):
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield path, archive.namelist()


def test_the_wheel_installs_one_package_and_its_metadata(wheel):
    top = {name.split("/")[0] for name in wheel[1]}
    assert {name.partition("-")[0] for name in top} == {"specjax"} and len(top) == 2
    assert sum(name.endswith(".dist-info") for name in top) == 1


def test_the_wheel_is_small(wheel):
    assert wheel[0].stat().st_size <= MAX_BYTES


def test_everything_is_in_the_wheel(wheel, files):
    expected = set()
    for path in files:
        first, *rest = path.relative_to(ROOT).parts
        if first in SOURCES:
            expected.add("/".join([first, *rest] if first == "specjax" else ["specjax", first, *rest]))
    assert expected - set(wheel[1]) == set()


def test_the_sdist_has_sources_tests_and_papers(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "models/decoder.py", "tests/conftest.py",
            "tests/packaging/test_wheel.py"} <= names
