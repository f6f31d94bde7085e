"""A suite's folder: ``suite.yaml``, which describes the suite, and a folder for each run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from mcurl_torchrl.files import write_file
from mcurl_torchrl.training import RunDirectory
from recipes.command_line import BadCommand
from recipes.file_errors import in_words
from recipes.suites.definition import Experiment, Suite, how_many
from recipes.suites.provenance import current_commit, now


def note_start(suite: Suite) -> None:
    """Writes ``suite.yaml``: the suite, and the time and the commit of each start.

    Raises:
        BadCommand: as :func:`read_folder`.
    """
    file, before = suite.folder / "suite.yaml", read_folder(suite)
    this_start = {"started": now(), "commit": current_commit()}
    if before is not None:
        again = [*before.get("continued", []), this_start]
        this_start = {"started": before.get("started"), "commit": before.get("commit"), "continued": again}
    content = {"name": suite.name, **suite.to_plain(), **this_start}
    suite.folder.mkdir(parents=True, exist_ok=True)
    write_file(file, OmegaConf.to_yaml(content).encode())


def read_folder(suite: Suite) -> dict[str, Any] | None:
    """Reads the ``suite.yaml`` of a suite's folder; None if there is none yet.

    Raises:
        BadCommand: if the folder is no folder or a run's own, if it holds another suite, or runs that this suite does
            not have, or if the file is damaged.
    """
    if suite.folder.exists() and not suite.folder.is_dir():
        raise BadCommand(f"suite.dir={suite.folder}: it is a file")
    if RunDirectory(suite.folder).manifest.exists():
        raise BadCommand(f"suite.dir={suite.folder}: it is the folder of a run; a suite needs a folder around its runs")
    file = suite.folder / "suite.yaml"
    if not file.exists():
        return None
    before = _read(file)
    _check_same(suite, file, before)
    return before


def _read(file: Path) -> dict[str, Any]:
    try:
        content = OmegaConf.to_container(OmegaConf.load(file))
        if not isinstance(content, dict):
            raise ValueError("it is no suite")
        content["runs"] = {run.name for one in content["experiments"] for run in Experiment(**one).runs()}
    except (OSError, ValueError, KeyError, TypeError, YAMLError, OmegaConfBaseException) as error:
        why = in_words(error)
        raise BadCommand(f"{file} is damaged: {why}. Remove it and start again: the runs are not affected") from None
    return content


def _check_same(suite: Suite, file: Path, before: dict[str, Any]) -> None:
    if before.get("name", suite.name) != suite.name:  # a declaration, as in kept results, has no name
        raise BadCommand(f"{suite.folder} holds the suite {before.get('name')}; give {suite.name} another suite.dir")
    if gone := sorted(before["runs"] - {run.name for run in suite.runs()}):
        raise BadCommand(
            f"{suite.folder} holds the suite {suite.name} with {how_many(gone)} more, such as {gone[0]}; keep "
            f"{'it' if len(gone) == 1 else 'them'} in the suite, use another suite.dir, or remove {file}"
        )
