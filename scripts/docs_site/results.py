"""The pages of results: one for each folder of benchmarks/results that has a README.md.

A page shows the README.md, then the report of a suite (report/report.md with its figures, which recipes/report.py
writes), and the command, the commit and the settings of each run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "benchmarks" / "results"
PAGE = "README.md"
REPORT = PurePosixPath("report/report.md")
DECLARED = ("probe_table", "probe_table_first")  # tables that were declared before they were run, like a suite
SHOWN = {".png", ".svg", ".gif", ".csv"}
FILES = ("config.yaml", "manifest.json", "result.json", "eval.csv")  # of a run; metrics.csv is long
FIGURE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<file>[^)]+)\.png\)")


def files() -> list[str]:
    """The pages of results and what lies beside them, from the repository's root."""
    found = [page for page, _ in with_pages()]
    found += [path for page in found for path in sorted(page.parent.iterdir()) if path.suffix in SHOWN]
    return [path.relative_to(REPO).as_posix() for path in found]


def with_pages() -> list[tuple[Path, str]]:
    """Each folder's page with its title."""
    found = []
    for page in sorted(FOLDER.glob(f"*/{PAGE}")):
        title = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        found.append((page, title[1] if title else page.parent.name))
    return found


def page_with(source: str) -> str:
    """The page that shows a file: a report is shown by its folder's page, all others by themselves."""
    inside = PurePosixPath(source)
    is_report = inside.is_relative_to("benchmarks/results") and inside.parts[3:] == REPORT.parts
    return str(inside.parents[1] / PAGE) if is_report else source


def complete(text: str, page: Path) -> str:
    """What somebody wrote, and below it the folder's report and its runs."""
    folder = page.parent
    if folder.parent != FOLDER or page.name != PAGE:
        return text
    return "\n\n".join([text.rstrip("\n"), *report_of(folder), *runs_of(folder), ""])


def report_of(folder: Path) -> list[str]:
    """The report without its title, with each figure for a light and for a dark page."""
    file = folder / REPORT
    if not file.is_file():
        return []
    _, _, body = file.read_text(encoding="utf-8").partition("\n")
    place = REPORT.parent

    def both(figure: re.Match[str]) -> str:
        name, text = f"{place}/{figure['file']}", figure["text"]
        return f"![{text}]({name}.png#only-light)\n![{text}]({name}-dark.png#only-dark)"

    numbers = f"Every number with its interval: [report.csv]({place}/report.csv)."
    return ["## The report", FIGURE.sub(both, body.strip("\n")), numbers]


def runs_of(folder: Path) -> list[str]:
    """The command, the commits and the files of each run of a folder."""
    rows = []
    for config in sorted(folder.rglob(FILES[0])):
        place = config.parent.relative_to(folder).as_posix()
        manifest = config.with_name("manifest.json")
        command, commits = started(json.loads(manifest.read_text(encoding="utf-8"))) if manifest.is_file() else ("", "")
        links = ", ".join(f"[{name}]({place}/{name})" for name in FILES if config.with_name(name).is_file())
        rows.append(f"| `{place}` | {command or 'above'} | {commits or 'above'} | {links} |")
    if not rows:
        return []
    return ["## Commands and settings", "\n".join(["| run | command | commit | files |", "|---|---|---|---|", *rows])]


def started(manifest: dict) -> tuple[str, str]:
    """The command of a run, without the folder it went to, and the commits that it was started and resumed with."""
    overrides = [f"'{one}'" if re.search(r"[\s\[{*]", one) else one for one in manifest.get("overrides", [])]
    command = " ".join(["python", f"recipes/{manifest['recipe']}.py", *overrides])
    starts = [manifest, *manifest.get("resumed", [])]
    commits = dict.fromkeys(((start.get("git") or {}).get("commit") or "not known")[:9] for start in starts)
    return f"`{command}`", ", ".join(commits)


def page() -> str:
    """The list of all results."""
    found = with_pages()
    suites = [pair for pair in found if (pair[0].parent / REPORT).is_file() or pair[0].parent.name in DECLARED]
    others = [pair for pair in found if pair not in suites]
    lines = ["# Results", ""]
    lines += ["Each result is a folder of `benchmarks/results/` with its commands, settings and numbers.", ""]
    lines += ["## Suites and tables", ""]
    lines += ["[Declared](../suites.md#declaring-a-suite) before they were run. With fewer than three seeds there is"]
    lines += ["no interval, and methods cannot be compared."]
    lines += ["[How many runs of each suite are done](../repository/benchmarks/suites/README.md).", ""]
    lines += [f"- [{title}]({page.parent.name}/index.md)" for page, title in suites]
    lines += ["", "## Single runs", "", "One seed each: these runs are examples, not comparisons of methods.", ""]
    lines += [f"- [{title}]({page.parent.name}/index.md)" for page, title in others]
    return "\n".join([*lines, ""])
