"""All pages in one folder, as the generator wants them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from docs_site import api, commands, results, settings

REPO = Path(__file__).resolve().parents[2]
RESULTS = PurePosixPath("benchmarks/results")
# Code is not changed: text in code that looks like a link is not a link.
CODE_OR_LINK = re.compile(
    r"^(?P<fence> *(?:```|~~~)).*?^(?P=fence)[^\n]*$|`[^`\n]+`|(?P<before>\]\()(?P<target>[^)\s]+)(?P<after>[^)\n]*\))",
    re.DOTALL | re.MULTILINE,
)
# Generated pages, by their path in the site.
GENERATED: dict[str, Callable[[], str]] = {
    **{f"reference/{name}.md": page for name, page in api.pages().items()},
    "reference/settings.md": settings.page,
    "reference/commands.md": commands.page,
    "results/index.md": results.page,
}


def assemble(folder: Path) -> None:
    """Writes all pages and their images into the folder; unchanged files are not written, so a server ignores them."""
    waiting = [path.relative_to(REPO).as_posix() for path in sorted((REPO / "docs").rglob("*")) if path.is_file()]
    waiting += results.files()
    made: dict[str, bytes] = {}
    while waiting:
        source = results.page_with(waiting.pop())
        if place(source) in made or not (REPO / source).is_file():
            continue
        content = (REPO / source).read_bytes()
        if source.endswith(".md"):
            text = results.complete(content.decode("utf-8"), REPO / source)
            content = move_links(text, source).encode("utf-8")
            waiting += linked_files(text, source)
        made[place(source)] = content
    made |= {name: page().encode("utf-8") for name, page in GENERATED.items()}
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.relative_to(folder).as_posix() not in made:
            path.unlink()
    for name, content in made.items():
        target = folder / name
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def place(source: str) -> str:
    """Returns the path of a repository file in the site: docs/ is the root, and results have their own folder."""
    path = PurePosixPath(source)
    if path.is_relative_to("docs"):
        return str(path.relative_to("docs"))
    if path.is_relative_to(RESULTS):
        inside = PurePosixPath(results.page_with(source)).relative_to(RESULTS)
        if inside.name == results.PAGE:  # the page of a folder of results
            inside = inside.with_name("index.md")
        return str(PurePosixPath("results") / inside)
    return str(PurePosixPath("repository") / path)


def move_links(text: str, source: str) -> str:
    """Rewrites the links of a page to the paths of the site."""
    here = PurePosixPath(place(source)).parent

    def moved(match: re.Match[str]) -> str:
        if match["target"] is None:
            return match[0]
        file, mark, anchor = match["target"].partition("#")
        inside = file_of(file, source)
        if inside is None:
            return match[0]
        return f"{match['before']}{os.path.relpath(place(inside), here)}{mark}{anchor}{match['after']}"

    return CODE_OR_LINK.sub(moved, text)


def linked_files(text: str, source: str) -> list[str]:
    """The files of the repository that a page links to."""
    targets = [match["target"].partition("#")[0] for match in CODE_OR_LINK.finditer(text) if match["target"]]
    return [inside for target in targets if (inside := file_of(target, source)) is not None]


def file_of(target: str, source: str) -> str | None:
    """Returns the path of a link's file in the repository; None for web addresses and links within a page.

    The file does not have to exist: a page of docs/ may link to a generated page, as if it were in docs/.
    """
    if not target or re.match(r"[a-z]+:", target):
        return None
    inside = os.path.normpath(PurePosixPath(source).parent / target)
    return None if inside.startswith("..") else inside
