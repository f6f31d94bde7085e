"""Trained policies that come with the package, in a folder each, made by ``evaluate.py pack=FOLDER``."""

from __future__ import annotations

from pathlib import Path

from recipes.command_line import SHARED, BadCommand

POLICIES = Path(__file__).parent


def shipped() -> list[str]:
    """Returns the names of the policies that come with the package."""
    return sorted(config.parent.name for config in POLICIES.glob("*/config.json"))


def find_policy(named: str) -> Path:
    """Returns the folder of a policy that comes with the package, by its name, or any other folder.

    Raises:
        BadCommand: if there is neither; lists the policies of the package.
    """
    if named in shipped():
        return POLICIES / named
    if Path(named).is_dir():
        return Path(named)
    recipe = "sac" if "-" in named else "rainbow"  # tasks of DMControl are named DOMAIN-TASK
    known = (SHARED / "env" / f"{named}.yaml").is_file()
    train = f" To train one: mcurl train {recipe} env={named} preset=cpu" if known else ""
    there = " or ".join(shipped())
    raise BadCommand(f"{named}: there is no such folder, and no trained policy of that name; choose {there}.{train}")
