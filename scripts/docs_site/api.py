"""The reference of the library: a page for each folder of the package, an entry for each public name."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "mcurl_torchrl"


def pages() -> dict[str, Callable[[], str]]:
    """The pages by name: index, and one for each folder."""
    return {"index": index, **{folder: partial(folder_page, folder) for folder in folders()}}


def folders() -> list[str]:
    """The folders of the package with public names, in the order of the pipeline."""
    order = ["envs", "replay", "transforms", "modules", "objectives", "agents", "training", "reports"]
    found = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py") if public_names(path.parent.name))
    return [name for name in order if name in found] + [name for name in found if name not in order]


def public_names(folder: str = "") -> list[str]:
    """Returns `__all__` of a folder of the package; without a folder, `__all__` of the package itself."""
    for node in parse(folder).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def parse(folder: str) -> ast.Module:
    return ast.parse((PACKAGE / folder / "__init__.py").read_text(encoding="utf-8"))


def homes() -> dict[str, str]:
    """The folder in which each name of the package itself is documented."""
    found = {name: folder for folder in reversed(folders()) for name in public_names(folder)}
    return {name: found[name] for name in public_names()}


def index() -> str:
    """Returns the page with the names of `mcurl_torchrl` itself and with its folders."""
    lines = ["# The library", "", "From `mcurl_torchrl` itself:", ""]
    lines += ["| name | what it is |", "|---|---|"]
    lines += [
        f"| [`{name}`][mcurl_torchrl.{folder}.{name}] | {first_sentence(folder, name)} |"
        for name, folder in homes().items()
    ]
    lines += ["", "All folders, in the order of the data flow:", ""]
    lines += ["| folder | what it holds |", "|---|---|"]
    lines += [f"| [`mcurl_torchrl.{folder}`]({folder}.md) | {summary(folder)} |" for folder in folders()]
    return "\n".join([*lines, ""])


def first_sentence(folder: str, name: str) -> str:
    """Returns the first line of a name's docstring, with addresses as Markdown links."""
    module = next(
        node.module
        for node in parse(folder).body
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]
    )
    file = PACKAGE.parent.joinpath(*(module or "").split(".")).with_suffix(".py")
    definitions = ast.parse(file.read_text(encoding="utf-8")).body
    said = next(ast.get_docstring(node) for node in definitions if getattr(node, "name", None) == name)
    return re.sub(r"https?://[^\s,)]+", r"<\g<0>>", (said or "").partition("\n")[0])


def summary(folder: str) -> str:
    return (ast.get_docstring(parse(folder)) or "").partition("\n")[0]


def folder_page(folder: str) -> str:
    """Returns the page of one folder: its summary, and an entry for each name."""
    entries = [f"::: mcurl_torchrl.{folder}.{name}" for name in public_names(folder)]
    return "\n\n".join([f"# `mcurl_torchrl.{folder}`", summary(folder), *entries, ""])
