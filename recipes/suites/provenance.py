"""Which code a suite's runs are of, and declaring a suite before its first run."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mcurl_torchrl.files import write_file
from recipes.command_line import BadCommand
from recipes.suites.definition import Suite

RECIPES = Path(__file__).resolve().parents[1]
CODE = ("mcurl_torchrl", "recipes")  # what a run computes with


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def git(*arguments: str) -> str | None:
    """Returns what git says about the repository of the recipes; none where it fails."""
    command = ["git", "--no-optional-locks", "-C", str(RECIPES), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.rstrip("\n")
    except (OSError, subprocess.SubprocessError):
        return None


def current_commit() -> str | None:
    """Returns the commit of the recipes; none where they are not in a repository."""
    return git("rev-parse", "HEAD") if git("ls-files", "--error-unmatch", "launch.py") else None


@functools.cache
def files_that_differ(one: str, other: str) -> tuple[str, ...] | None:
    """Returns the files of the code that are not the same in two commits; none where git does not know them."""
    if one == other:
        return ()
    listed = git("diff", "--name-only", one, other, "--", *(f":/{name}" for name in CODE))
    return None if listed is None else tuple(listed.splitlines())


def marks(manifest: Mapping[str, Any], declared: Mapping[str, str] | None) -> list[str]:
    """Says in what a run's code is not that of the suite's declaration: nothing where it is, or nothing was declared.

    A declaration is committed after the commit that it names, so commits may differ where their code does not.
    """
    if declared is None:
        return []
    found = []
    for git_state in _code_of(manifest):
        commit = git_state.get("commit") or "unknown"
        differing = files_that_differ(declared["commit"], commit)
        if differing is None or differing:
            which = f"; {len(differing)} files differ: {_few(differing)}" if differing else ""
            found.append(f"of commit {commit[:7]}, not of the declared {declared['commit'][:7]}{which}")
        if git_state.get("dirty"):
            found.append("with changes that are in no commit")
    return list(dict.fromkeys(found))


def _code_of(manifest: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields what a manifest says about the code, of its start and of each time it was resumed."""
    for entry in (manifest, *manifest.get("resumed", [])):
        yield entry.get("git") or {}


def _few(files: tuple[str, ...]) -> str:
    return ", ".join(files[:3]) + (", ..." if len(files) > 3 else "")


def declare(suite: Suite) -> Path:
    """Writes the commit and the time into a suite's file, so that its runs can be told from those of other code.

    A suite of ``conf/suite`` is copied to ``benchmarks/suites``; another file is changed where it is.

    Returns:
        The file to commit.

    Raises:
        BadCommand: if it was declared before, or if there are changes that are in no commit.
    """
    if suite.declared is not None:
        raise BadCommand(f"{suite.file} was declared at {suite.declared['time']}; a declaration is made once")
    commit, root = current_commit(), git("rev-parse", "--show-toplevel")
    if commit is None or root is None:
        raise BadCommand(f"{RECIPES} is in no git repository, so there is no commit to declare")
    of_recipes = suite.file.resolve().is_relative_to(RECIPES)
    target = Path(root) / "benchmarks" / "suites" / suite.file.name if of_recipes else suite.file.resolve()
    if of_recipes and target.exists():
        raise BadCommand(f"{target} is there already; rename {suite.file.name}, or declare suite={target}")
    listed = (git("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all") or "").split("\0")
    changed = [line[3:] for line in listed if line and (Path(root) / line[3:]).resolve() != target]
    if changed:
        raise BadCommand(f"declare=true: commit these first, or take them back: {', '.join(changed)}")
    text = suite.file.read_text(encoding="utf-8").rstrip("\n")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_file(target, f"{text}\ndeclared:\n  commit: {commit}\n  time: {now()}\n".encode())
    return target
