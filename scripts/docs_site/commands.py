"""The reference of the command lines, from the docstrings and options of the scripts in recipes/."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from docs_site.settings import RECIPES, Key, sections, table
from recipes.console import COMMANDS

# The dataclass with the options of each script that has only a few; the other scripts take all settings of a recipe.
OPTIONS = {
    "evaluate": (RECIPES / "schema.py", "EvaluateConfig"),
    "play": (RECIPES / "schema.py", "PlayConfig"),
    "report": (RECIPES / "schema.py", "ReportConfig"),
    "suite": (RECIPES / "suite.py", "Options"),
}
WITHOUT_OPTIONS = ("compare", "runs")


def scripts() -> list[Path]:
    """The files of recipes/ that are programs."""
    return [file for file in sorted(RECIPES.glob("*.py")) if '__name__ == "__main__"' in file.read_text("utf-8")]


def page() -> str:
    """The page of all programs."""
    lines = [
        "# Command lines",
        "",
        "Options are written `key=value`, without dashes. Give them in any order. Each script is a "
        "[command of `mcurl`](../console.md), too.",
        "",
    ]
    for file in scripts():
        lines += [f"## `{file.name}`", "", *describe(file), ""]
    return "\n".join(lines)


def describe(file: Path) -> list[str]:
    """Returns the docstring of a script, and its options."""
    said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    (command,) = (name for name, command in COMMANDS.items() if command.script == file.stem)
    lines = [f"The same as `mcurl {command}`.", "", as_markdown(said), ""]
    if file.stem in WITHOUT_OPTIONS:
        return lines
    if file.stem in OPTIONS:
        return [*lines, *table(options(file.stem))]
    return [*lines, "Takes all [settings](settings.md), `-m` for sweeps, and Hydra's own flags: `--help`, `--cfg job`."]


def options(script: str) -> list[Key]:
    file, name = OPTIONS[script]
    return sections(file)[name][1]


def as_markdown(docstring: str) -> str:
    """Returns a docstring as Markdown, with indented commands as code blocks."""
    return re.sub(r"(?m)(?:^ {4}\S.*\n?)+", lambda block: f"```bash\n{dedent(block[0])}\n```\n", docstring)


def dedent(text: str) -> str:
    return re.sub(r"(?m)^ {4}", "", text).rstrip()
