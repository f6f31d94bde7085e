"""Imports point upward only: a module imports from its own folder, from the folders before it, and from the top."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "mcurl_torchrl"
# The way of the data; modules beside these folders are at the top: every folder may import them.
LAYERS = ("envs", "replay", "transforms", "modules", "objectives", "agents", "training", "reports")
FOLDERS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())


def modules() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"]


def layer_of(path: Path) -> str | None:
    """Returns the folder of a module, or None for a module at the top."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of each import of this package, also inside functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            # "from mcurl_torchrl import replay" imports the folder just as "import mcurl_torchrl.replay" does.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == PACKAGE.name)


def wrong_imports(source: str, layer: str | None) -> list[str]:
    """Lists the imports that a module of a layer must not have; all may ``import mcurl_torchrl``, for its version."""
    allowed = LAYERS[: LAYERS.index(layer) + 1] if layer else ()
    at_top = [path.stem for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]
    return [
        f"line {line}: {name}"
        for line, name in imported(source)
        if name != PACKAGE.name and name.split(".")[1] not in (*allowed, *at_top)
    ]


def test_every_folder_has_its_place() -> None:
    assert set(FOLDERS) <= set(LAYERS), "a new folder needs a place in LAYERS"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_upward(path: Path) -> None:
    assert wrong_imports(path.read_text(encoding="utf-8"), layer_of(path)) == []


@pytest.mark.parametrize(
    ("source", "layer", "wrong"),
    [
        ("from mcurl_torchrl.replay.windows import Rows", "transforms", []),
        ("from mcurl_torchrl.replay.windows import Rows", "replay", []),
        ("from mcurl_torchrl.replay.windows import Rows", "envs", ["line 1: mcurl_torchrl.replay.windows.Rows"]),
        ("from mcurl_torchrl import replay", "envs", ["line 1: mcurl_torchrl.replay"]),
        ("import mcurl_torchrl.training.run", "objectives", ["line 1: mcurl_torchrl.training.run"]),
        ("def late():\n    from mcurl_torchrl.modules import QHead", "replay", ["line 2: mcurl_torchrl.modules.QHead"]),
        ("from mcurl_torchrl import PixelEncoder", "training", ["line 1: mcurl_torchrl.PixelEncoder"]),
        ("from mcurl_torchrl.envs import gl", None, ["line 1: mcurl_torchrl.envs.gl"]),
        ("from mcurl_torchrl.checks import require", "envs", []),
        ("from mcurl_torchrl.checks import require", None, []),
        ("import torch\nfrom torchrl.envs import EnvBase", "envs", []),
    ],
)
def test_a_wrong_import_is_found(source: str, layer: str | None, wrong: list[str]) -> None:
    assert wrong_imports(source, layer) == wrong


def test_test_folders_mirror_the_package() -> None:
    tests = PACKAGE.parent / "tests"
    assert [name for name in FOLDERS if not (tests / name).is_dir()] == []
