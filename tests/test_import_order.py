"""Triton must be imported before a renderer's OpenGL: our files keep this order, and the other order is an error."""

from __future__ import annotations

import ast
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mcurl_torchrl import import_order

REPO = Path(__file__).resolve().parents[1]
FOLDERS = ("benchmarks", "examples", "recipes", "scripts", "tests")
FILES = sorted(path for folder in FOLDERS for path in (REPO / folder).rglob("*.py"))
RENDERERS = {"dm_control", "mujoco"}
BRING_TRITON = {"mcurl_torchrl", "tensordict", "torchrl"}


def imported(node: ast.AST) -> set[str]:
    """The packages that a statement imports; what is inside of functions counts where the function stands."""
    names = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            names |= {alias.name.split(".")[0] for alias in part.names}
        elif isinstance(part, ast.ImportFrom) and part.module and not part.level:
            names.add(part.module.split(".")[0])
    return names


def imports_a_renderer_too_early(source: str) -> bool:
    """Whether a file imports a renderer before the first statement that is certain to import triton."""
    for statement in ast.parse(source).body:
        if imported(statement) & RENDERERS:
            return True
        if isinstance(statement, ast.Import | ast.ImportFrom) and imported(statement) & BRING_TRITON:
            return False
    return False


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPO)))
def test_our_files_import_triton_first(path: Path) -> None:
    assert not imports_a_renderer_too_early(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("source", "too_early"),
    [
        ("from dm_control import suite\nimport torchrl", True),
        ("import torch\nimport mujoco.viewer\nimport mcurl_torchrl", True),  # torch alone does not import triton
        ("def make():\n    import mujoco\nimport torchrl", True),
        ("if True:\n    import torchrl\nimport mujoco", True),
        ("import mujoco", True),
        ("import torchrl.data\nfrom dm_control import suite", False),
        ("from mcurl_torchrl.envs import make_dmc_env\ndef make():\n    import mujoco", False),
        ("import torch", False),
    ],
)
def test_the_reading_of_files(source: str, too_early: bool) -> None:
    assert imports_a_renderer_too_early(source) == too_early


@pytest.fixture
def triton(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH in which triton is found; an empty package where this build of torch has none."""
    if importlib.util.find_spec("triton") is None:
        (tmp_path / "triton").mkdir()
        (tmp_path / "triton" / "__init__.py").touch()
    return tmp_path


def python(code: str, *folders: Path, backend: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(map(str, [*folders, REPO]))
    environment = {**os.environ, "PYTHONPATH": paths, "MUJOCO_GL": backend}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


# Each makes Mesa load its LLVM.
RENDERER_FIRST = {
    "dm_control": "from dm_control import suite",
    "mujoco": "import mujoco\nmujoco.Renderer(mujoco.MjModel.from_xml_string('<mujoco/>'), height=8, width=8).render()",
}


@pytest.mark.parametrize("renderer", RENDERER_FIRST)
def test_a_renderer_before_triton_is_an_import_error(renderer: str, triton: Path) -> None:
    failed = python(f"{RENDERER_FIRST[renderer]}\nimport mcurl_torchrl", triton, backend="egl")
    assert failed.returncode == 1
    last = failed.stderr.splitlines()[-1]
    assert last.startswith("ImportError: mcurl_torchrl is imported after a renderer")
    assert last.endswith("Import torchrl or mcurl_torchrl before dm_control and mujoco")


def test_the_crash_is_real_where_triton_is() -> None:
    """What the check spares the user; without triton there is nothing to crash."""
    done = python(f"{RENDERER_FIRST['dm_control']}\nimport tensordict", backend="egl")
    expected = 0 if importlib.util.find_spec("triton") is None else -signal.SIGSEGV
    assert done.returncode == expected, done.stderr


# The module by itself: without torch these processes start in a fraction of the time.
CHECK = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("import_order", {import_order.__file__!r})
import_order = importlib.util.module_from_spec(spec)
spec.loader.exec_module(import_order)
import_order.check_import_order()
"""


@pytest.mark.parametrize(
    ("before", "backend"),
    [
        ("import triton\nfrom dm_control import suite", "egl"),
        ("import mujoco", "egl"),  # nothing is drawn: Mesa is not loaded
        ("from dm_control import suite", "disable"),
        ("from dm_control import suite", "glfw"),
        ("import sys\nsys.modules['triton'] = None\nfrom dm_control import suite", "egl"),  # as if not installed
    ],
    ids=["triton first", "nothing drawn", "disable", "glfw", "no triton"],
)
def test_what_does_not_crash_is_let_through(before: str, backend: str, triton: Path) -> None:
    done = python(before + CHECK, triton, backend=backend)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "first", ["mcurl_torchrl", *(pytest.param(first, marks=pytest.mark.slow) for first in ("torchrl", "tensordict"))]
)
def test_the_right_order_works_with_any_build_of_torch(first: str) -> None:
    done = python(f"import {first}\n{RENDERER_FIRST['dm_control']}\nimport mcurl_torchrl", backend="egl")
    assert done.returncode == 0, done.stderr


def test_an_opengl_that_mujoco_cannot_load_is_named() -> None:
    """Any machine lacks this one; where OSMesa is missing, MUJOCO_GL=osmesa ends in the same way."""
    command = [sys.executable, "-c", "import mcurl_torchrl"]
    done = subprocess.run(command, env={**os.environ, "MUJOCO_GL": "nosuchgl"}, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "During handling" not in done.stderr
    assert last.startswith("ImportError: MUJOCO_GL=nosuchgl: mujoco, which TorchRL imports, cannot load this OpenGL")
    assert "Leave MUJOCO_GL unset" in last
