"""Imports point one way: L0 <- L1 <- L2 <- L3 <- the public faces <- models <- checkpoints <- what stands above."""

import ast
import importlib.util
import pathlib
import subprocess
import sys

import pytest

import specjax

SOURCE = pathlib.Path(specjax.__file__).parent
CORE = {
    "types": 0, "tree": 0, "rows": 0, "noise": 0,
    "truncate": 1, "sampling": 1, "constraint": 1, "sight": 1, "cache": 1, "checks": 1, "sharding": 1,
    "draft": 2, "verify": 2,
    "state": 3, "ending": 3, "request": 3, "decode": 3, "speculative": 3, "generate": 3,
}  # fmt: skip
"""Layer of each module or folder of `specjax._src`; a new one must be given its place here."""
ABOVE = {"testing": 5, "serving": 5, "models": 6, "checkpoints": 7, "training": 8, "benchmarks": 8, "cli": 9}
FACES = 4


def layer(module):
    """Where a dotted name under `specjax` stands."""
    parts = module.split(".")[1:]
    if not parts:
        return FACES
    if parts[0] == "_src":
        assert len(parts) > 1 or module == "specjax._src", module
        if len(parts) == 1:
            return 0
        assert parts[1] in CORE, f"{module}: give it a layer in tests/core/test_layers.py"
        return CORE[parts[1]]
    return ABOVE.get(parts[0], FACES)


def modules():
    """Name and path of every module of the installed package."""
    for package in ("specjax", "specjax.models", "specjax.checkpoints"):
        spec = importlib.util.find_spec(package)
        root = pathlib.Path(spec.submodule_search_locations[0])
        for path in sorted(root.rglob("*.py")):
            if package == "specjax" and path.relative_to(root).parts[0] in ("models", "checkpoints"):
                continue  # a wheel has them inside
            parts = [*package.split("."), *path.relative_to(root).with_suffix("").parts]
            yield ".".join(parts).removesuffix(".__init__"), path


def imported(name, path):
    """Dotted names under `specjax` that a module imports when it is loaded or later, but for type checkers, and but for
    what it does as a command: that stands above everything."""
    tree = ast.parse(path.read_text())
    guards = [node for node in ast.walk(tree) if isinstance(node, ast.If) and any(
        word in ast.dump(node.test) for word in ("TYPE_CHECKING", "__main__"))]
    unseen = {id(child) for node in guards for child in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "specjax")
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            if node.module and node.module.split(".")[0] == "specjax":
                yield from (f"{node.module}.{alias.name}" if is_module(f"{node.module}.{alias.name}") else node.module
                            for alias in node.names)


def is_module(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_no_arrow_points_up():
    seen = 0
    for name, path in modules():
        for target in imported(name, path):
            if target == "specjax._src" or (name == "specjax" and layer(target) == FACES):
                continue
            seen += 1
            assert layer(target) <= layer(name), f"{name} (layer {layer(name)}) imports {target} ({layer(target)})"
    assert seen > 100


def test_the_core_knows_no_framework():
    """Only jax, chex, numpy and the standard library below the models; scipy only where a test asks for it."""
    allowed = {"jax", "chex", "numpy", "specjax", "scipy"} | set(sys.stdlib_module_names)
    for name, path in modules():
        if layer(name) > ABOVE["testing"]:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert {one.split(".")[0] for one in names} <= allowed, f"{name} imports {names}"


@pytest.mark.parametrize("statement", ["import specjax", "import specjax.testing", "import specjax.serving"])
def test_a_light_import(statement):
    code = (f"{statement}, sys\nheavy = {{'flax', 'optax', 'orbax', 'tokenizers', 'safetensors', 'scipy', 'models'}}\n"
            "print(sorted(heavy & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=SOURCE.parent, check=True)
    assert done.stdout.strip() in ("[]", "['scipy']"), done.stdout  # jax itself may load scipy


def test_the_rule_has_teeth(tmp_path):
    """An arrow that points up is seen: an L0 module that imports the decode loop."""
    path = tmp_path / "rows.py"
    path.write_text("from specjax._src import decode\nfrom specjax._src.draft.null import null\n")
    found = list(imported("specjax._src.rows", path))
    assert found == ["specjax._src.decode", "specjax._src.draft.null"]
    assert all(layer(target) > layer("specjax._src.rows") for target in found)
