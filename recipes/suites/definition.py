"""The definition of a suite in a YAML file: recipes, environments, algorithms and seeds, in their order."""

from __future__ import annotations

import functools
import importlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sized
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from recipes.command_line import CONF, BadCommand, as_whole_number, check_overrides, config_folder, did_you_mean
from recipes.file_errors import in_words
from recipes.schema import PPORecipeConfig, RainbowRecipeConfig, SACRecipeConfig

SCHEMAS = {"ppo_mcurl": PPORecipeConfig, "rainbow_mcurl": RainbowRecipeConfig, "sac_mcurl": SACRecipeConfig}
SUITES = CONF / "suite"
TOP_KEYS = ("experiments", "declared", "dir")
SET_BY_THE_SUITE = ("env", "algo", "seed", "resume", "resume_changed", "hydra.run.dir")


@dataclass(frozen=True)
class PlannedRun:
    """One run of a suite, in the folder ``RECIPE/ENV/LABEL-seedN``; the label is ALGO, or ALGO-VARIANT."""

    recipe: str
    env: str
    label: str
    seed: int
    overrides: tuple[str, ...]  # the recipe's command line, except for the folder

    @property
    def name(self) -> str:
        return f"{self.recipe}/{self.env}/{self.label}-seed{self.seed}"

    def settings(self) -> dict[str, Any]:
        """Returns the recipe's config with these overrides.

        Raises:
            BadCommand: if the overrides do not fit the recipe's config.
        """
        of_any_seed = tuple(line for line in self.overrides if not line.startswith("seed="))
        return {**_composed(self.recipe, of_any_seed), "seed": self.seed}

    @property
    def env_steps(self) -> int:
        """The env steps of its last evaluation: whole agent steps."""
        settings = self.settings()
        repeat = settings["env"]["action_repeat"]
        return settings["total_env_steps"] // repeat * repeat


@functools.cache
def _composed(recipe: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    from recipes.launch import check_settings  # imports torch, which takes seconds
    from recipes.resuming import comparable

    try:
        with initialize_config_dir(str(config_folder(recipe)), version_base="1.3"):
            given = OverridesParser.create().parse_overrides(list(overrides))
            cfg = compose(recipe, overrides=[as_whole_number(one, SCHEMAS[recipe]).input_line for one in given])
        check_settings(cfg, check=getattr(importlib.import_module(f"recipes.{recipe}"), "check", None))
        return comparable(cfg)
    except (BadCommand, HydraException, OmegaConfBaseException) as error:
        raise BadCommand(f"{recipe} with {' '.join(overrides)}: {error}") from None


@dataclass(frozen=True)
class Experiment:
    """A recipe with all combinations of environments, algorithms, variants and seeds."""

    recipe: str
    envs: list[str]
    algos: list[str]
    seeds: list[int]
    overrides: list[str] = field(default_factory=list)
    variants: dict[str, list[str]] = field(default_factory=dict)  # name of a variant to its further overrides

    def runs(self) -> Iterator[PlannedRun]:
        """Yields the runs, seed by seed, so that each seed is a complete comparison."""
        variants = self.variants or {"": []}
        for seed, env, algo, variant in itertools.product(self.seeds, self.envs, self.algos, variants):
            given = [*(self.overrides or []), *(variants[variant] or [])]  # a YAML file may leave a list empty
            # Several runs share the cores, and one thread for each run is fastest.
            threads = [] if any(line.startswith("threads=") for line in given) else ["threads=1"]
            overrides = (f"env={env}", f"algo={algo}", f"seed={seed}", *given, *threads)
            yield PlannedRun(self.recipe, env, f"{algo}-{variant}" if variant else algo, seed, overrides)


@dataclass(frozen=True)
class Suite:
    """The experiments in their order, their folder, and the declaration."""

    name: str
    file: Path
    experiments: list[Experiment]
    folder: Path
    declared: dict[str, str] | None = None

    def runs(self) -> list[PlannedRun]:
        return [run for experiment in self.experiments for run in experiment.runs()]

    def runs_like(self, patterns: str) -> list[PlannedRun]:
        """Returns the runs whose names match at least one of several comma-separated glob patterns.

        Raises:
            BadCommand: if a pattern matches no run.
        """
        runs, wanted = self.runs(), patterns.split(",")
        for pattern in wanted:
            if not any(fnmatchcase(run.name, pattern) for run in runs):
                raise BadCommand(f"only={pattern} matches no run of {self.name}; a run is named like {runs[0].name}")
        return [run for run in runs if any(fnmatchcase(run.name, pattern) for pattern in wanted)]

    def to_plain(self) -> dict[str, Any]:
        """Returns the suite as plain data for a YAML file."""
        kept = [{key: value for key, value in asdict(one).items() if value} for one in self.experiments]
        return {"experiments": kept, **({"declared": self.declared} if self.declared else {})}


def how_many(things: Sized, noun: str = "run") -> str:
    """Returns ``"1 run"``, ``"2 runs"``, and so on."""
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


# -- reading -----------------------------------------------------------------------------------------------------------


def find_suite(named: str) -> Path:
    """Returns the file of a suite, given by its name in ``conf/suite`` or by its path."""
    if named.endswith((".yaml", ".yml")) or "/" in named:
        if not Path(named).is_file():
            raise BadCommand(f"suite={named}: there is no such file")
        return Path(named)
    names = suite_names()
    if named not in names:
        raise BadCommand(f"suite={named}: {did_you_mean(named, names)} (Or give the path of a YAML file.)")
    return SUITES / f"{named}.yaml"


def suite_names() -> list[str]:
    return sorted(file.stem for file in SUITES.glob("*.yaml"))


def read_suite(file: Path, changes: Mapping[str, Any], folder: str | None = None) -> Suite:
    """Reads a suite and checks all of it before the first run.

    Args:
        file: the YAML file.
        changes: keys of an experiment, which are set in all experiments.
        folder: the folder of the suite, instead of ``dir`` in the YAML file.

    Raises:
        BadCommand: if the file has an error; the message names the place in the file.
    """
    content = _read_yaml(file)
    _check_keys(f"{file}", content, TOP_KEYS)
    listed = content.get("experiments")
    if not listed:
        raise BadCommand(f"{file}: the suite is empty: it has no experiments")
    if not isinstance(listed, list):
        raise BadCommand(f"{file}: experiments must be a list, with a dash before each: - recipe: sac_mcurl")
    if not isinstance(content.get("dir"), str | None):
        raise BadCommand(f"{file}: dir={content['dir']}; it must be one folder")
    experiments = [
        _read_experiment(f"{file}: experiments[{number}]", one, changes) for number, one in enumerate(listed)
    ]
    place = folder or content.get("dir") or f"runs/suites/{file.stem}"
    suite = Suite(file.stem, file, experiments, Path(str(place)).absolute(), _read_declared(file, content))
    _check_distinct(suite)
    return suite


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        content = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise BadCommand(f"{file} cannot be read: {in_words(error)}") from None
    if not isinstance(content, dict):
        raise BadCommand(f"{file} is not a suite: it must have a list of experiments")
    return content


def _check_keys(where: str, content: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in content:
        if key not in known:
            raise BadCommand(f"{where} has {key!r}; {did_you_mean(str(key), list(known))}")


def _read_declared(file: Path, content: Mapping[str, Any]) -> dict[str, str] | None:
    declared = content.get("declared")
    if declared is None:
        return None
    if not isinstance(declared, dict) or set(declared) != {"commit", "time"}:
        raise BadCommand(f"{file}: declared={declared}; it must have a commit and a time")
    return {key: str(value) for key, value in declared.items()}


def _read_experiment(where: str, content: Any, changes: Mapping[str, Any]) -> Experiment:
    if not isinstance(content, dict):
        raise BadCommand(f"{where} is {content!r}; it must have a recipe, envs, algos and seeds")
    _check_keys(where, content, tuple(one.name for one in fields(Experiment)))
    content = {**content, **changes}
    if missing := [key for key in ("recipe", "envs", "algos", "seeds") if key not in content]:
        raise BadCommand(f"{where} has no {' and no '.join(missing)}")
    if content["recipe"] not in SCHEMAS:
        raise BadCommand(f"{where}: recipe={content['recipe']}; {did_you_mean(str(content['recipe']), list(SCHEMAS))}")
    variants = {} if content.get("variants") is None else content["variants"]
    if not isinstance(variants, dict) or not all(re.fullmatch(r"\w+", str(name), re.ASCII) for name in variants):
        raise BadCommand(f"{where}.variants={variants}; each needs a name of letters, digits and underscores")
    experiment = Experiment(
        content["recipe"],
        _list_of(str, f"{where}.envs", content["envs"]),
        _list_of(str, f"{where}.algos", content["algos"]),
        _list_of(int, f"{where}.seeds", content["seeds"]),
        _list_of(str, f"{where}.overrides", content.get("overrides") or [], empty=True),
        {
            str(name): _list_of(str, f"{where}.variants.{name}", lines or [], empty=True)
            for name, lines in variants.items()
        },
    )
    _check_overrides(where, experiment)
    return experiment


def _list_of(kind: type, where: str, value: Any, *, empty: bool = False) -> list[Any]:
    what = "whole numbers, such as [1, 2, 3]" if kind is int else "words, such as [a, b]"
    if not isinstance(value, list) or not all(type(one) is kind for one in value) or not (value or empty):
        raise BadCommand(f"{where}={value}; it must be a list of {what}")
    for one in value:
        if value.count(one) > 1:
            raise BadCommand(f"{where} has {one} twice")
    return value


def _check_overrides(where: str, experiment: Experiment) -> None:
    """Checks that the recipe accepts each name of the experiment, and then each combination."""
    schema, conf = SCHEMAS[experiment.recipe], config_folder(experiment.recipe)
    try:
        parse = OverridesParser.create().parse_overrides
        algos = parse([f"algo={algo}" for algo in experiment.algos])
        check_overrides([*parse([f"env={env}" for env in experiment.envs]), *algos], schema, conf)
        for given in (*experiment.overrides, *itertools.chain(*experiment.variants.values())):
            (override,) = parse([given])
            if override.key_or_group in SET_BY_THE_SUITE:
                raise BadCommand(f"{given}: the suite sets {override.key_or_group} itself")
            if override.is_sweep_override():
                raise BadCommand(f"{given} has several values; use variants, which have names")
            check_overrides([*algos, override], schema, conf)
        for run in replace(experiment, seeds=experiment.seeds[:1]).runs():
            run.settings()
        if min(experiment.seeds) < 0:
            raise BadCommand(f"seed={min(experiment.seeds)}; it must be at least 0")
    except (BadCommand, OverrideParseException) as error:
        raise BadCommand(f"{where}: {str(error).strip()}") from None


def _check_distinct(suite: Suite) -> None:
    names = set()
    for number, experiment in enumerate(suite.experiments):
        for run in experiment.runs():
            if run.name in names:
                where = f"{suite.file}: experiments[{number}]"
                raise BadCommand(f"{where} repeats {run.name} of an earlier experiment; use variants, which have names")
            names.add(run.name)
