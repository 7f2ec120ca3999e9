"""The guards that come with `models/` and `checkpoints/` at the top level, and the budgets of the style."""

import ast
import pathlib
import statistics
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ("specjax", "models", "checkpoints")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = SETTINGS["tool"]["setuptools"]["package-dir"]


def folder(package):
    """Where a package stands in the tree."""
    for prefix in sorted(FOLDERS, key=len, reverse=True):
        if package == prefix or package.startswith(prefix + "."):
            return pathlib.Path(FOLDERS[prefix], *package.removeprefix(prefix).strip(".").split("."))
    raise AssertionError(package)


def python(code, cwd=ROOT):
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)


def test_the_list_of_packages_is_that_of_the_disk(python_files):
    listed = {folder(package).as_posix() for package in SETTINGS["tool"]["setuptools"]["packages"]}
    present = {
        path.parent.relative_to(ROOT).as_posix() for path in python_files
        if path.name == "__init__.py" and path.relative_to(ROOT).parts[0] in SOURCES}
    assert listed == present


def test_no_module_stands_outside_a_package(python_files):
    inside = [path for path in python_files if path.relative_to(ROOT).parts[0] in SOURCES]
    assert inside and all((path.parent / "__init__.py").exists() for path in inside)


def test_imports_are_absolute(python_files):
    for path in python_files:
        relative = [
            node.lineno for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.level]
        assert not relative, f"{path.relative_to(ROOT)}: relative imports in lines {relative}"


def test_nobody_imports_the_top_level_folders_by_their_own_names(python_files):
    for path in python_files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {name.split(".")[0] for name in names} & {"models", "checkpoints"}, (path, node.lineno)


def test_one_copy_of_every_class():
    result = python("import specjax.models, specjax.checkpoints, specjax.cli, sys\n"
                    "assert 'models' not in sys.modules and 'checkpoints' not in sys.modules")
    assert result.returncode == 0, result.stderr


def test_the_library_alone_loads_neither_flax_nor_optax_nor_orbax():
    result = python("import specjax, sys\n"
                    "print(*(name for name in sys.modules if name.split('.')[0] in ('flax', 'optax', 'orbax')))")
    assert result.returncode == 0 and result.stdout.strip() == "", result.stdout + result.stderr


def test_no_file_and_no_function_is_too_long(python_files):
    ours = [path for path in python_files if "tests" not in path.relative_to(ROOT).parts]
    lengths = {path: len(path.read_text().splitlines()) for path in python_files}
    assert max(lengths.values()) <= 500, max(lengths, key=lengths.get)
    assert statistics.median(lengths[path] for path in ours) <= 180
    sizes = {}
    for path in python_files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                documentation = len((ast.get_docstring(node) or "").splitlines())
                sizes[path.name, node.name] = node.end_lineno - node.lineno + 1 - documentation
    assert max(sizes.values()) <= 90, max(sizes, key=sizes.get)
    assert statistics.quantiles(sizes.values(), n=10)[-1] <= 50


def test_no_path_of_one_machine(files):
    homes = ["/" + name + "/" for name in ("work", "root", "home")]
    for path in files:
        if path.suffix in (".py", ".md", ".toml", ".yaml", ".json", ".jsonl", ".ipynb"):
            text = path.read_text(errors="ignore")
            assert not [home for home in homes if home in text], path.relative_to(ROOT)
