"""Checks the command line of a recipe before Hydra composes the config. Errors list names similar to a wrong name."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, IntegerNode, OmegaConf

from recipes import console
from recipes.finding_runs import runs_near, why_not_resumable
from recipes.objective_files import objective_keys
from recipes.schema import CONF
from recipes.value_checks import AUTO, FREE, BadCommand

if TYPE_CHECKING:  # this imports torch, which takes seconds: functions import it only when they read a run directory
    from mcurl_torchrl.training import RunDirectory

SHARED = CONF / "shared"
TEXTS = ("title", "out", "pack", "export")  # settings that take any text
FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
# What Hydra reads as a number, such as the folders 2024_10_05 and 1e3; it would name another folder.
LIKE_A_NUMBER = r"[+-]?(\d[\d_]*|\.\d)[\d_.]*([eE][+-]?[\d_]+)?|(?i:[+-]?(inf|nan))"
PATHS = (
    "resume",
    "run",
    "runs",
    "out",
    "pack",
    "policy",
    "encoder.init",
    "data.path",
    "data.root",
    "encoders",
)  # settings that name a file or a folder
# Settings of earlier versions, and the settings that replace them.
MOVED = {
    "encoder.augmentation": "augmentation: random_crop is augmentation=crop, center_crop is augmentation=none",
    "rainbow.augmentation": "augmentation.views: shift is augmentation.views=curl_shift",
    "ppo.augmentation": "augmentation.views: shift is augmentation.views=curl_shift",
    "objective.intensity_scale": "augmentation.views_intensity",
}


def config_folder(config_name: str) -> Path:
    """Returns the folder with a script's config and its own groups; all scripts share the groups of conf/shared."""
    (found,) = CONF.glob(f"*/{config_name}.yaml")
    return found.parent


def program() -> str:
    """Returns the name of the program for messages: ``mcurl train sac``, or the name of the script."""
    return " ".join(console.words) or Path(sys.argv[0]).name


def answer(main: Callable[[list[str]], int]) -> NoReturn:
    """Runs a script that has no Hydra config; a wrong command line ends with an error message."""
    try:
        sys.exit(main(sys.argv[1:]))
    except (BadCommand, OSError) as error:
        sys.exit(f"{program()}: {error}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def message_of(error: Exception) -> str:
    """Returns the message of an error, with the cause that Hydra's own errors leave out."""
    cause = f"\n{error.__cause__}" if isinstance(error, HydraException) and error.__cause__ else ""
    return f"{error}{cause}"


def asks_for_information(arguments: list[str]) -> bool:
    """Tells whether the command line asks Hydra for help or for the config, so that no job is run."""
    flags = {"-h", "--help", "--hydra-help", "-sc", "--shell-completion", "-c", "--cfg", "-i", "--info"}
    return bool(flags & set(arguments))


def is_multirun(arguments: list[str]) -> bool:
    return bool({"-m", "--multirun"} & set(arguments))


def read_settings(arguments: list[str], schema: type, conf: Path) -> tuple[list[str], list[Override]]:
    """Checks the settings of a command line against a schema and a folder of configs.

    Returns the arguments in the order and with the quotes that Hydra needs, and the parsed overrides.
    """
    arguments = [quote_existing(argument) for argument in arguments]
    # Hydra's parser takes settings on one side of its flags only.
    arguments = sorted(arguments, key=lambda argument: argument not in ("-m", "--multirun"))
    settings = [argument for argument in arguments if not argument.startswith("-")]
    try:
        overrides = OverridesParser.create().parse_overrides(settings)
    except OverrideParseException as error:
        raise BadCommand(f"{error}".strip()) from None
    overrides = [as_whole_number(override, schema) for override in overrides]
    check_overrides(overrides, schema, conf)
    from recipes.launchers import check_launcher  # it needs this module

    check_launcher(overrides, multirun=is_multirun(arguments))
    check_resume(overrides, multirun=is_multirun(arguments))
    rewritten = dict(zip(settings, (override.input_line for override in overrides), strict=True))
    arguments = [rewritten.get(argument, argument) for argument in arguments]
    given = {override.key_or_group: override.value() for override in overrides if not override.is_sweep_override()}
    for key in ("env.task", "env.game"):
        if (named := given.get(key)) is not None and (SHARED / "env" / f"{named}.yaml").is_file():
            raise BadCommand(f"{key}={named}: {named} has published settings of its own; use env={named}")
    return arguments, overrides


def as_whole_number(override: Override, schema: type) -> Override:
    """Writes 1e3 as 1000 if the schema has an integer, also in a sweep: OmegaConf does not convert 1e3."""
    values = chosen(override)
    if not any(isinstance(value, float) and value.is_integer() for value in values):
        return override
    node: Any = OmegaConf.structured(schema)
    for part in override.key_or_group.split("."):
        node = node._get_node(part) if isinstance(node, DictConfig) and part in node else None
    if not isinstance(node, IntegerNode):
        return override
    whole = (int(value) if isinstance(value, float) and value.is_integer() else value for value in values)
    return OverridesParser.create().parse_override(f"{override.key_or_group}={','.join(map(str, whole))}")


def prepare(arguments: list[str], schema: type, conf: Path) -> list[str]:
    """Checks the command line with :func:`read_settings`; to resume a run, adds the settings of that run."""
    if asks_for_information(arguments):
        return arguments
    arguments, overrides = read_settings(arguments, schema, conf)
    for override in overrides:
        if override.key_or_group == "run":
            open_run(override)
    resumed = [override for override in overrides if override.key_or_group == "resume"]
    if not resumed:
        from recipes.launchers import settings_to_start_again

        return [*arguments, *settings_to_start_again(overrides, schema)]
    if resumed[-1].value() in (None, AUTO):
        return arguments
    given = {override.key_or_group for override in overrides}
    directory = open_run(resumed[-1])
    check_recipe(directory, schema().recipe)
    flags = [argument for argument in arguments if argument.startswith("-")]
    settings = [argument for argument in arguments if not argument.startswith("-")]
    # Hydra refuses a group that is set twice; the new setting wins.
    recorded = overrides_of(directory, schema, conf)
    before = [override.input_line for override in recorded if override.key_or_group not in given]
    # Hydra's own record of the first start, .hydra/, stays as it is.
    place = [f"hydra.run.dir={quoted(directory.path)}", "hydra.output_subdir=null"]
    return [*flags, *before, *settings, *place]


def check_resume(overrides: list[Override], *, multirun: bool) -> None:
    """Refuses resume=auto without a directory to look in, and a sweep that continues one run."""
    given = {override.key_or_group: override.value() for override in overrides}
    place = "hydra.sweep.dir" if multirun else "hydra.run.dir"
    if given.get("resume") == AUTO and place not in given:
        raise BadCommand(f"resume=auto needs the directory of the run: add {place}=DIR")
    if multirun and given.get("resume") not in (None, AUTO):
        raise BadCommand("resume=DIR continues one run; resume=auto continues a sweep")


def run_named_by(override: Override) -> Path:
    """Returns the run that an override of `resume` or `run` names, or refuses it and lists runs near its path."""
    if override.is_sweep_override():
        raise BadCommand(f"{override.input_line}: there is no such path, and Hydra reads it as several values")
    path = Path(str(override.value())).absolute()
    if why := why_not_resumable(path):
        raise BadCommand(f"{path}: {why}. {runs_near(path)}")
    return path


def open_run(override: Override) -> RunDirectory:
    """Opens the run that an override names; refuses a run without a checkpoint that can be read."""
    from mcurl_torchrl.training import Checkpoints, RunDirectory

    directory = RunDirectory(run_named_by(override))
    if Checkpoints(directory.checkpoints).latest() is None:
        raise BadCommand(f"{directory.path}: none of its checkpoints can be read. {runs_near(directory.path)}")
    return directory


def quote_existing(argument: str) -> str:
    """Quotes paths of existing files and plain text, because some characters have a meaning in Hydra's grammar."""
    key, equals, typed = argument.partition("=")
    is_path = key in PATHS and typed and os.path.lexists(typed)
    is_text = key in TEXTS and typed[:1] not in ("", "'", '"')
    like_a_number = key in (*PATHS, *FOLDERS) and typed and re.fullmatch(LIKE_A_NUMBER, typed)
    return f"{key}={quoted(typed)}" if is_path or is_text or like_a_number else argument


def quoted(path: str | Path) -> str:
    """Returns a path in a form that Hydra's grammar reads as one string."""
    if re.fullmatch(r"[\w./-]+", str(path), re.ASCII) and not re.fullmatch(LIKE_A_NUMBER, str(path)):
        return str(path)
    # A backslash has a meaning only before a quote.
    text = re.sub(r"(\\*)'", r"\1\1\'", str(path))
    text = re.sub(r"(\\+)$", r"\1\1", text)
    return f"'{text}'"


def overrides_of(directory: RunDirectory, schema: type, conf: Path) -> list[Override]:
    """Returns the overrides that a run was started with, without Hydra's own, checked like those of a command line."""
    lines = read_manifest(directory).get("overrides")
    named = f"resume={directory.path}: {directory.manifest.name}"
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise BadCommand(f"{named} is damaged: it lists no overrides")
    try:
        overrides = OverridesParser.create().parse_overrides(lines)
        check_overrides(overrides, schema, conf)
    except (OverrideParseException, BadCommand) as error:
        raise BadCommand(f"{named} lists overrides that cannot be used: {error}") from None
    return [override for override in overrides if not is_hydras(override)]


def is_hydras(override: Override) -> bool:
    """Tells whether an override is one of Hydra's own, such as hydra.run.dir=DIR or hydra/launcher=joblib."""
    return re.split("[./]", override.key_or_group)[0] == "hydra"


def read_manifest(directory: RunDirectory) -> dict[str, Any]:
    try:
        return directory.read_manifest()
    except ValueError as error:
        raise BadCommand(f"resume={directory.path}: {error}") from None


def check_recipe(directory: RunDirectory, ours: str) -> None:
    """Refuses to continue a run of another recipe."""
    theirs = read_manifest(directory).get("recipe")
    if theirs is not None and theirs != ours:
        raise BadCommand(f"resume={directory.path}: it is a run of recipes/{theirs}.py, not of recipes/{ours}.py")


def group_choices(group: str, conf: Path) -> list[str]:
    """Returns the choices of a config group, both the recipe's own and the shared ones; empty if there is no group."""
    found = {file.stem for folder in (conf, SHARED) for file in (folder / group).glob("*.yaml")}
    if group == "algo":  # every objective is an algorithm, too
        found |= {file.stem for file in (SHARED / "objective").glob("*.yaml")} - {"none"}
    return sorted(found)


def chosen_objective(overrides: list[Override], conf: Path) -> set[str]:
    """Returns the dotted keys of the objectives that the overrides choose."""
    choices = [override for override in overrides if override.key_or_group in ("algo", "objective")]
    names = {str(name) for override in choices for name in chosen(override)} or {"mcurl"}
    keys = (objective_keys(objective_of_algo(name, conf)) for name in names)
    return {f"objective.{key}" for found in keys for key in found or ()}


def objective_of_algo(name: str, conf: Path) -> str:
    """Returns the objective that an algorithm's file chooses; without a file, the objective of the same name."""
    file = conf / "algo" / f"{name}.yaml"
    if not file.is_file():
        return name
    (chosen_by,) = (entry for entry in OmegaConf.load(file).defaults if "override /objective" in entry)
    return str(chosen_by["override /objective"])


def check_overrides(overrides: list[Override], schema: type, conf: Path) -> None:
    """Refuses overrides of settings and choices that a recipe does not have."""
    objective = chosen_objective(overrides, conf)
    for override in overrides:
        check_override(override, schema, conf, objective)


def check_override(override: Override, schema: type, conf: Path, objective: set[str]) -> None:
    key = override.key_or_group
    if is_hydras(override):
        return
    group = key.partition("@")[0]
    if choices := group_choices(group, conf):
        for choice in chosen(override):
            if choice not in choices:
                raise BadCommand(f"{group}={choice}: {did_you_mean(str(choice), choices)}")
        return
    names = dict(known_keys(OmegaConf.structured(schema))) | dict.fromkeys(objective, False)
    parts = key.split(".")
    # Below a key that takes a dictionary, any key is allowed.
    if key not in names and not any(names.get(".".join(parts[:count])) for count in range(1, len(parts))):
        if key in MOVED:
            raise BadCommand(f"there is no setting {key!r} any more; it is {MOVED[key]}")
        groups = sorted(folder.name for place in (conf, SHARED) for folder in place.iterdir() if folder.is_dir())
        raise BadCommand(f"there is no setting {key!r}; {did_you_mean(key, [*groups, *names])}")


def chosen(override: Override) -> list[Any]:
    value = override.value()
    return list(value.list) if isinstance(value, ChoiceSweep) else [value]


def known_keys(config: DictConfig, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Yields every dotted key of a config, and whether it takes a dictionary with any keys."""
    for key in config:
        name, node = f"{prefix}{key}", config._get_node(key)
        yield name, name in FREE
        if isinstance(node, DictConfig) and not node._is_none():
            yield from known_keys(node, f"{name}.")


def did_you_mean(word: str, choices: list[str]) -> str:
    close = difflib.get_close_matches(word, choices, n=4, cutoff=0.5)
    # A key without its section, or in a wrong section, is similar to a key with the same last part.
    close += [name for name in choices if name.split(".")[-1] == word.split(".")[-1] and name not in close]
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"choose one of {', '.join(choices)}"
