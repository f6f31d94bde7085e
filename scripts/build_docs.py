"""Builds the documentation site in build/docs/site, or serves it and updates it when files change.

    python scripts/build_docs.py
    python scripts/build_docs.py --serve

Every warning of the site generator, of the docstring parser and of the link check is an error.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from docs_site import links, pages, results

REPO = Path(__file__).resolve().parents[1]
BUILD = REPO / "build" / "docs"
CONFIG = REPO / "mkdocs.yml"
WATCHED = ("docs", "mcurl_torchrl", "recipes", "benchmarks/results", "scripts/docs_site")


class Warnings(logging.Handler):
    """Collects the messages of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="serve the site, and make it again when a file changes")
    parser.add_argument("--address", default="localhost:8000", help="where to serve it")
    options = parser.parse_args()
    os.environ.setdefault("NO_COLOR", "1")
    if options.serve:
        return serve(options.address)
    said = build(BUILD)
    for line in said:
        print(f"docs: {line}", file=sys.stderr)
    print(f"{BUILD / 'site' / 'index.html'}" if not said else f"docs: {len(said)} problems", file=sys.stderr)
    return bool(said)


def build(folder: Path) -> list[str]:
    """Builds the site in a folder; returns a list of problems."""
    try:
        from zensical import build as generate
    except ImportError:
        here = platform.python_version()
        return [f"Zensical is missing: `make docs` installs it on Python 3.11 or newer; this is Python {here}"]
    shutil.rmtree(folder, ignore_errors=True)  # removes the cache, too: a cached page would not warn again
    config = prepare(folder)
    warnings = Warnings()
    logging.getLogger().addHandler(warnings)
    try:
        generate(str(config), {"clean": True, "strict": True})
    except RuntimeError as error:
        warnings.said.append(str(error))  # the generator has already printed the details
    finally:
        logging.getLogger().removeHandler(warnings)
    return [*not_in_navigation(), *warnings.said, *links.problems(folder / "site")]


def prepare(folder: Path) -> Path:
    """Writes the pages and the generator's config, with all results in the navigation, into the folder."""
    pages.assemble(folder / "pages")
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    for section in config["nav"]:
        for title, entries in section.items():
            if title == "Results":
                entries += [{name: f"results/{page.parent.name}/index.md"} for page, name in results.with_pages()]
    written = folder / "mkdocs.yml"
    written.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return written


def not_in_navigation() -> list[str]:
    """Returns a message for each page of docs/ that mkdocs.yml does not list."""
    listed = set(leaves(yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["nav"]))
    written = {path.relative_to(REPO / "docs").as_posix() for path in (REPO / "docs").rglob("*.md")}
    return [f"docs/{name} is not in the nav of mkdocs.yml" for name in sorted(written - listed)]


def leaves(nav: Any) -> list[str]:
    """The pages of a navigation, at any depth."""
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in leaves(entry)]


def serve(address: str) -> int:
    """Starts the generator's server, and assembles the pages again when a file changes."""
    config = prepare(BUILD)
    command = [sys.executable, "-m", "zensical", "serve", "--config-file", str(config), "--dev-addr", address]
    places = os.pathsep.join([str(REPO / "scripts"), os.environ.get("PYTHONPATH", "")])  # where docs_site is
    with (
        subprocess.Popen(command, cwd=REPO, env={**os.environ, "PYTHONPATH": places}) as server,
        contextlib.suppress(KeyboardInterrupt),
    ):
        before = newest()
        while server.poll() is None:
            time.sleep(1)
            if (now := newest()) > before:
                before = now
                pages.assemble(BUILD / "pages")
    return 0


def newest() -> float:
    """Returns the time of the last change of a file of the site."""
    files = [path for folder in WATCHED for path in (REPO / folder).rglob("*") if path.is_file()]
    return max(path.stat().st_mtime for path in files if "__pycache__" not in path.parts)


if __name__ == "__main__":
    sys.exit(main())
