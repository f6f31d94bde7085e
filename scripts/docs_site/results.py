"""The pages of results: one for each folder of benchmarks/results that has a page of its own."""

from __future__ import annotations

import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "benchmarks" / "results"
PAGES = ("report.md", "README.md")  # what recipes/report.py wrote; else what somebody wrote
DECLARED = ("probe_table", "probe_table_first")  # folders that are no suite, and were declared like one
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
    lines += ["Everything here is a folder of `benchmarks/results/` with its commands, settings and numbers.", ""]
    lines += ["## Suites and tables", ""]
    if suites:
        lines += ["Declared before they were run, several seeds, with intervals.", ""]
        lines += [f"- [{title}]({page.parent.name}/index.md)" for page, title in suites]
    else:
        lines += ["None is finished yet. `benchmarks/suites/` has those that are [declared](../suites.md)."]
    lines += ["", "## Single runs", "", "One seed each: they show that something works, and compare nothing.", ""]
    lines += [f"- [{title}]({page.parent.name}/index.md)" for page, title in others]
    return "\n".join([*lines, ""])
