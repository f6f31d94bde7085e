"""Compares the code of a suite's runs with the declared code, and declares a suite before its first run."""

from __future__ import annotations

import contextlib
import functools
import subprocess
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError

from mcurl_torchrl.files import write_file
from recipes.command_line import BadCommand
from recipes.suites.definition import Suite, how_many

RECIPES = Path(__file__).resolve().parents[1]
CODE = ("mcurl_torchrl", "recipes")  # the folders whose code affects a run


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def git(*arguments: str) -> str | None:
    """Returns the output of git in the repository of the recipes; None if git fails."""
    command = ["git", "--no-optional-locks", "-C", str(RECIPES), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.rstrip("\n")
    except (OSError, subprocess.SubprocessError):
        return None


def current_commit() -> str | None:
    """Returns the commit of the recipes; None if they are not in a repository."""
    return git("rev-parse", "HEAD") if git("ls-files", "--error-unmatch", "launch.py") else None


@functools.cache
def files_that_differ(one: str, other: str) -> tuple[str, ...] | None:
    """Returns the code files that differ between two commits; None if git does not know one of the commits."""
    if one == other:
        return ()
    listed = git("diff", "--name-only", one, other, "--", *(f":/{name}" for name in CODE))
    return None if listed is None else tuple(listed.splitlines())


def marks(manifest: Mapping[str, Any], declared: Mapping[str, str] | None) -> list[str]:
    """Returns remarks on a run whose code is not the declared code; empty if it is, or if the suite is not declared.

    A declaration is committed after the commit that it names, so two commits with the same code are not a difference.
    """
    if declared is None:
        return []
    found = ["started before the suite was declared"] if started_before(manifest.get("time"), declared["time"]) else []
    for git_state in _code_of(manifest):
        commit = git_state.get("commit") or "unknown"
        differing = files_that_differ(declared["commit"], commit)
        if differing is None or differing:
            which = f"; {how_many(differing, 'file')} with differences: {_few(differing)}" if differing else ""
            found.append(f"of commit {commit[:7]}, not of the declared {declared['commit'][:7]}{which}")
        if git_state.get("dirty"):
            found.append("with uncommitted changes")
    return list(dict.fromkeys(found))


def started_before(started: Any, declared: str | None) -> bool:
    """Tells whether a run was started before the suite was declared; not if one of the times is not known."""
    try:
        return datetime.fromisoformat(started) < datetime.fromisoformat(str(declared))
    except (TypeError, ValueError):
        return False


def _code_of(manifest: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the git state of a manifest, for the start and for each time the run was resumed."""
    for entry in (manifest, *manifest.get("resumed", [])):
        yield entry.get("git") or {}


def _few(files: tuple[str, ...]) -> str:
    return ", ".join(files[:3]) + (", ..." if len(files) > 3 else "")


def declare(suite: Suite) -> Path:
    """Writes the commit and the time into a suite's file, so that runs of other code can be marked.

    A suite of ``conf/suite`` is copied to ``benchmarks/suites``; any other file is changed in place.

    Returns:
        The file to commit.

    Raises:
        BadCommand: if the suite is already declared, or if there are uncommitted changes.
    """
    if suite.declared is not None:
        raise BadCommand(f"{suite.file} was already declared at {suite.declared['time']}")
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
        raise BadCommand(f"declare=true: commit or revert these changes first: {', '.join(changed)}")
    text = suite.file.read_text(encoding="utf-8").rstrip("\n")
    declared = {"commit": commit, "time": now()}
    text = "\n".join([text, "declared:", *(f"  {key}: {value}" for key, value in declared.items()), ""])
    with contextlib.suppress(YAMLError):
        if OmegaConf.create(text) == {**OmegaConf.load(suite.file), "declared": declared}:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_file(target, text.encode())
            return target
    raise BadCommand(
        f"{suite.file}: nothing can be added at its end; write it without braces, and without an empty declared"
    )
