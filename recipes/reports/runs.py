"""Finds the runs in folders, at any depth, and reads their files."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from mcurl_torchrl.training import RunDirectory, read_evaluations
from recipes.command_line import BadCommand
from recipes.file_errors import in_words
from recipes.launch import env_name
from recipes.old_settings import as_of_today
from recipes.resuming import flat, read_result
from recipes.suites.definition import Experiment
from recipes.suites.provenance import files_that_differ, started_before

SUITE = "suite.yaml"
FOLDER_NAME = re.compile(r"(?P<label>.+)-seed\d+(-\d{8}-\d{6})?")
# Old configs do not contain the name of the recipe: it follows from their sections.
SECTIONS = {"sac": "sac_mcurl", "rainbow": "rainbow_mcurl"}
NEEDED = ("algo_name", "seed", "total_env_steps", "env.backend")
NOT_A_SUITE = (OSError, ValueError, KeyError, TypeError, AttributeError, YAMLError, OmegaConfBaseException)
FINISHED, UNFINISHED, DAMAGED = "finished", "unfinished", "damaged"


@dataclass(frozen=True)
class Suite:
    """The suite of the runs in a folder."""

    path: Path
    commit: str | None = None
    declared: str | None = None  # when it was declared
    planned: frozenset[Path] = frozenset()  # its runs' folders: RECIPE/ENV/LABEL-seedN


@dataclass(frozen=True)
class Run:
    """A run directory, read."""

    path: Path
    recipe: str
    benchmark: str  # atari, dmc or gym
    task: str
    label: str  # the algorithm, with the name of a suite's variant
    seed: int
    settings: dict[str, Any]  # all of them, by dotted key
    status: str
    curve: tuple[tuple[int, float], ...]  # env steps, mean return of an evaluation
    result: dict[str, Any]
    started: str = ""
    commits: tuple[str | None, ...] = (None,)  # of its start, and of each time it was resumed
    remarks: tuple[str, ...] = ()

    @property
    def total_env_steps(self) -> int:
        return self.settings["total_env_steps"]

    @property
    def env_steps(self) -> int:
        """The env steps of its last evaluation."""
        return self.curve[-1][0] if self.curve else 0

    @property
    def code(self) -> str:
        """The commit of its start, and others with which it was resumed."""
        return ", ".join(dict.fromkeys((commit or "not known")[:9] for commit in self.commits))

    def number(self, key: str) -> float | None:
        """Returns a number of result.json; None if it is missing."""
        return finite(self.result.get(key))


@dataclass
class Found:
    """The content of the folders: runs, unreadable folders with the reason, suites, and problems."""

    runs: list[Run] = field(default_factory=list)
    unreadable: list[tuple[Path, str]] = field(default_factory=list)
    suites: list[Suite] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def not_started(self, suite: Suite) -> list[Path]:
        """Returns the runs of a suite that have no folder yet."""
        there = {path.resolve() for path in (*(run.path for run in self.runs), *(path for path, _ in self.unreadable))}
        return sorted(folder for folder in suite.planned if (suite.path / folder).resolve() not in there)


def find_runs(folders: list[Path]) -> Found:
    """Reads all runs in the folders, each once; a folder without runs is an error."""
    found, known = Found(), set[Path]()
    for folder in folders:
        if not folder.is_dir():
            raise BadCommand(f"runs={folder}: {'it is a file' if folder.exists() else 'there is no such folder'}")
        below = list(run_folders(folder, suite_above(folder), set(), found))
        if not below and not found.unreadable:
            raise BadCommand(
                f"runs={folder}: there is no run below it; a run is a folder with config.yaml and manifest.json or "
                "result.json"
            )
        for path, suite in below:
            if path.resolve() in known:  # a folder that was given twice, or a link to it
                continue
            known.add(path.resolve())
            try:
                found.runs.append(read_run(path, suite))
            except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
                found.unreadable.append((path, str(error)))
            except (AttributeError, KeyError, TypeError) as error:  # JSON or YAML of another shape than ours
                found.unreadable.append((path, f"it is damaged: {error!r}"))
    return found


def run_folders(
    folder: Path, suite: Suite | None, seen: set[Path], found: Found
) -> Iterator[tuple[Path, Suite | None]]:
    """Yields the run directories at or below a folder, with the suite that they belong to."""
    place = folder.resolve()
    if place in seen:  # symbolic links can form a loop
        return
    seen.add(place)
    if (folder / SUITE).is_symlink() and not (folder / SUITE).exists():
        found.problems.append(f"{folder / SUITE} is a link to a file that is missing, so its runs are not checked.")
    if (folder / SUITE).is_file():
        try:
            suite = read_suite(folder)
            found.suites += [suite] if suite not in found.suites else []
        except NOT_A_SUITE as error:
            found.problems.append(f"{folder / SUITE} cannot be read, so its runs are not checked: {in_words(error)}.")
    directory = RunDirectory(folder)
    if directory.manifest.is_file() or (directory.result.is_file() and directory.config.is_file()):
        yield folder, suite
        return
    if directory.result.is_file() or directory.eval.path.is_file():
        if all(path.resolve() != place for path, _ in found.unreadable):
            found.unreadable.append((folder, f"it has no {directory.manifest.name} that says which run it is"))
        return
    for below in sorted(folder.iterdir()):
        if below.is_symlink() and not below.exists():
            broken = f"{below} is a link to a folder that is missing."
            found.problems += [broken] if broken not in found.problems else []
        elif below.is_dir() and not below.name.startswith("."):
            yield from run_folders(below, suite, seen, found)


def suite_above(folder: Path) -> Suite | None:
    """Returns the suite that a folder inside a suite's folder belongs to; None if there is none that can be read."""
    for above in Path(os.path.abspath(folder)).parents:
        if (above / SUITE).is_file():
            with contextlib.suppress(*NOT_A_SUITE):
                return read_suite(above)
    return None


def read_suite(folder: Path) -> Suite:
    content = OmegaConf.to_container(OmegaConf.load(folder / SUITE))
    experiments = [Experiment(**listed) for listed in content.get("experiments") or []]
    planned = frozenset(Path(run.name) for experiment in experiments for run in experiment.runs())
    declared = content.get("declared") or {}
    return Suite(folder, declared.get("commit"), declared.get("time"), planned)


# -- one run -----------------------------------------------------------------------------------------------------------


def read_run(path: Path, suite: Suite | None) -> Run:
    """Reads a run directory; raises an error with the reason if it cannot be used."""
    directory = RunDirectory(path)
    cfg = read_config(directory.config)
    manifest = directory.read_manifest() if directory.manifest.is_file() else {}
    by_section = next((SECTIONS[key] for key in cfg if key in SECTIONS), None)
    recipe = cfg.get("recipe") or manifest.get("recipe") or by_section
    if recipe is None:
        raise ValueError(f"{directory.config.name} does not name its recipe")
    status, curve, result, remarks = read_outcome(directory, cfg)
    settings = flat(as_of_today(OmegaConf.to_container(cfg)))
    codes = [start.get("git") or {} for start in (manifest, *manifest.get("resumed", []))]
    named = FOLDER_NAME.fullmatch(path.name)
    has_variant = named is not None and named["label"].startswith(f"{cfg.algo_name}-")
    run = Run(
        path=path,
        recipe=recipe,
        benchmark=cfg.env.backend,
        task=env_name(cfg),
        label=named["label"] if has_variant else cfg.algo_name,
        seed=cfg.seed,
        settings={key: tuple(value) if isinstance(value, list) else value for key, value in settings},
        status=status,
        curve=curve,
        result=result,
        started=str(manifest.get("time", "")),
        commits=tuple(code.get("commit") for code in codes),
    )
    remarks += against_suite(run, suite)
    if any(code.get("dirty") for code in codes):
        remarks.append("its code had changes that were not committed")
    return Run(**{**vars(run), "remarks": tuple(remarks)})


def read_config(file: Path) -> DictConfig:
    """Reads a run's settings, and checks the settings that a report needs."""
    if not file.is_file():
        raise ValueError(f"it has no {file.name}")
    try:
        cfg = OmegaConf.load(file)
    except YAMLError as error:
        raise ValueError(f"{file.name} is damaged: {in_words(error)}") from error
    if not isinstance(cfg, DictConfig):
        raise ValueError(f"{file.name} is damaged: it has no settings")
    missing = [key for key in NEEDED if OmegaConf.select(cfg, key) is None]
    if missing or env_name(cfg) is None:
        raise ValueError(f"{file.name} has no {', '.join(missing) or 'env.task, env.game or env.id'}")
    for key in ("seed", "total_env_steps"):
        if not isinstance(cfg[key], int):
            raise ValueError(f"{file.name} has {key}={cfg[key]!r}; it must be a whole number")
    return cfg


def read_outcome(
    directory: RunDirectory, cfg: DictConfig
) -> tuple[str, tuple[tuple[int, float], ...], dict[str, Any], list[str]]:
    """Reads a run's status, curve, result.json and remarks, and compares its files with each other."""
    try:
        result = read_result(directory.result)
        points = read_evaluations(directory.eval.path) if directory.eval.path.is_file() else []
        wanted = OmegaConf.select(cfg, "evaluation.episodes", default=1)
        curve = tuple((steps, sum(returns) / len(returns)) for steps, returns in points if len(returns) >= wanted)
        for steps, mean in curve:
            if finite(mean) is None:
                raise ValueError(f"{directory.eval.path.name} is damaged: it has {mean} at {steps:,} env steps")
        if result.get("finished") and finite(result.get("env_steps")) is None:
            raise ValueError(f"{directory.result.name} is damaged: it has env_steps={result.get('env_steps')}")
    except (ValueError, KeyError, TypeError) as error:
        return DAMAGED, (), {}, [f"left out: {error}" if "damaged" in str(error) else f"left out: damaged ({error!r})"]
    remarks = [
        f"the evaluation at {steps:,} env steps has {len(returns)} of {wanted} episodes in eval.csv, and is not drawn"
        for steps, returns in points[:-1]
        if len(returns) < wanted
    ]
    repeat = OmegaConf.select(cfg, "env.action_repeat", default=1)
    if not result.get("finished"):
        return UNFINISHED, curve, result, [*remarks, *last_error(directory)]
    if result["env_steps"] < cfg.total_env_steps // repeat * repeat:
        return UNFINISHED, curve, result, [*remarks, "it was finished once, and is now trained for longer"]
    if why := disagreement(result, points):
        return DAMAGED, (), result, [f"left out: {why}"]
    return FINISHED, curve, result, remarks


def last_error(directory: RunDirectory) -> list[str]:
    """Returns a remark with the last line of error.log, if there is one."""
    log = directory.path / "error.log"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    return [f"error.log ends with {line.strip()}" for line in lines if line.strip()][-1:]


def disagreement(result: dict[str, Any], points: list[tuple[int, list[float]]]) -> str | None:
    """Describes how eval.csv and result.json of a finished run contradict each other, as after an incomplete copy."""
    if not points:
        return "eval.csv is missing or empty, although result.json says that the run is finished"
    for key in ("env_steps", "final_return", "best_return"):
        if finite(result.get(key)) is None:
            return f"result.json has {key}={result.get(key)}, which is no number"
    env_steps, returns = points[-1]
    if env_steps != result["env_steps"]:
        return f"eval.csv ends at {env_steps:,} env steps, result.json says {result['env_steps']:,}"
    if len(returns) != result.get("final_episodes", len(returns)):
        return f"eval.csv has {len(returns)} of the {result['final_episodes']} episodes of the last evaluation"
    final = sum(returns) / len(returns)
    if not math.isclose(final, result["final_return"], rel_tol=1e-6, abs_tol=1e-6):
        return (
            f"the last evaluation in eval.csv is {final:.1f} on average, result.json says {result['final_return']:.1f}"
        )
    return None


def finite(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def against_suite(run: Run, suite: Suite | None) -> list[str]:
    """Returns remarks on differences between a run and its suite."""
    if suite is None:
        return []
    remarks, folder = [], Path(os.path.relpath(run.path, suite.path))
    if suite.planned and folder not in suite.planned:
        remarks.append(f"not in {SUITE}")
    elif suite.planned and (folder.parts[0], folder.name) != (run.recipe, f"{run.label}-seed{run.seed}"):
        remarks.append(f"it does not match its folder's name: it is {run.label} of {run.recipe}, seed {run.seed}")
    if started_before(run.started, suite.declared):
        remarks.append("started before the suite was declared")
    for commit in dict.fromkeys(run.commits):
        if suite.commit is not None and commit != suite.commit:
            ran = "an unknown commit" if commit is None else f"commit {commit[:7]}"
            same = commit is not None and files_that_differ(suite.commit, commit) == ()
            remarks.append(f"{ran}, not the declared {suite.commit[:7]}{' (with the same code)' if same else ''}")
    return remarks
