"""Prints help, and errors in the command line, before torch is imported: the import takes seconds."""

from __future__ import annotations

import importlib
import os
import sys
import time
from dataclasses import fields

import hydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipes.command_line import (
    AUTO,
    BadCommand,
    asks_for_information,
    config_folder,
    is_multirun,
    message_of,
    program,
    read_settings,
    run_named_by,
)
from recipes.value_checks import check_values

ANSWER_SECONDS = 60.0  # time for the first rank to print the error


def answer_early(*, config_name: str, schema: type) -> None:
    """Ends the program after printing help, an error in the command line, or the name of a missing library.

    Scripts call this function before their other imports, to save time: ``launch`` repeats all checks. With several
    ranks, only the first one prints.
    """
    first = os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK") == "0"
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra raises its errors; without this it prints tracebacks
    arguments, conf = sys.argv[1:], config_folder(config_name)
    try:
        if asks_for_information(arguments):
            if first:
                hydra.main(version_base="1.3", config_path=str(conf), config_name=config_name)(lambda cfg: None)()
            sys.exit(0)
        arguments, overrides = read_settings(arguments, schema, conf)
        for override in overrides:
            if names_a_run(override, arguments):
                run_named_by(override)
        if can_be_composed(arguments, overrides):
            with hydra.initialize_config_dir(str(conf), version_base="1.3"):
                cfg = hydra.compose(config_name, [override.input_line for override in overrides])
            check_values(cfg)
            if missing := OmegaConf.missing_keys(cfg):
                examples = {one.name: one.metadata.get("example") for one in fields(schema)}
                raise BadCommand(f"{min(missing)}={examples.get(min(missing)) or 'VALUE'} is needed")
    except (ValueError, HydraException, OmegaConfBaseException, OSError) as error:
        if not first:
            time.sleep(ANSWER_SECONDS)  # torchrun ends all ranks as soon as one fails: let the first rank print first
        sys.exit(f"{program()}: {message_of(error)}" if first else 1)
    try:
        importlib.import_module("mcurl_torchrl")  # before TorchRL, whose error does not name the missing library
    except ImportError as error:
        sys.exit(f"{program()}: {error}")


def can_be_composed(arguments: list[str], overrides: list[Override]) -> bool:
    """Tells whether the command line describes one job completely: no sweep, and no run to resume."""
    swept = is_multirun(arguments) or any(override.is_sweep_override() for override in overrides)
    # Hydra resolves ${hydra:...} when the job begins.
    hydras = any("${hydra:" in str(override.input_line) for override in overrides)
    # The settings of a resumed run are in its directory; the modules that need torch read and check them.
    return not swept and not hydras and not any(override.key_or_group == "resume" for override in overrides)


def names_a_run(override: Override, arguments: list[str]) -> bool:
    """Tells whether an override names a run directory that must exist."""
    if override.key_or_group == "resume":
        return not is_multirun(arguments) and (override.is_sweep_override() or override.value() not in (None, AUTO))
    return override.key_or_group == "run"
