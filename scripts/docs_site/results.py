"""The pages of results: one for each folder of benchmarks/results that has a page."""

from __future__ import annotations

import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "benchmarks" / "results"
PAGES = ("report.md", "README.md")  # a report of recipes/report.py is preferred to a page written by hand
DECLARED = ("probe_table", "probe_table_first")  # tables that were declared before they were run, like a suite
SHOWN = {".png", ".svg", ".gif", ".md", ".csv", ".html"}


def files() -> list[str]:
    """The pages of results and what they show, from the repository's root."""
    found = [page for page, _ in with_pages()]
    for page, _ in with_pages():
        others = [path for path in page.parent.rglob("*") if path.suffix in SHOWN and path.name not in PAGES]
        found += [path for path in others if "figures" in path.parts or path.parent == page.parent]
    return [path.relative_to(REPO).as_posix() for path in found]


def with_pages() -> list[tuple[Path, str]]:
    """Each folder's page with its title."""
    found = []
    for folder in sorted(path for path in FOLDER.iterdir() if path.is_dir()):
        page = next((folder / name for name in PAGES if (folder / name).is_file()), None)
        if page is not None:
            title = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
            found.append((page, title[1] if title else folder.name))
    return found


def page() -> str:
    """The list of all results."""
    found = with_pages()
    suites = [(page, title) for page, title in found if page.name == "report.md" or page.parent.name in DECLARED]
    others = [pair for pair in found if pair not in suites]
    lines = ["# Results", ""]
    lines += ["Each result is a folder of `benchmarks/results/` with its commands, settings and numbers.", ""]
    lines += ["## Suites and tables", ""]
    if suites:
        lines += ["These were declared before they were run. They have several seeds and intervals, if complete.", ""]
        lines += [f"- [{title}]({page.parent.name}/index.md)" for page, title in suites]
    else:
        lines += ["None is finished yet. `benchmarks/suites/` contains the [declared](../suites.md) suites."]
    lines += ["", "## Single runs", "", "One seed each: these runs are examples, not comparisons of methods.", ""]
    lines += [f"- [{title}]({page.parent.name}/index.md)" for page, title in others]
    return "\n".join([*lines, ""])
