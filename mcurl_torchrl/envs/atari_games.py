"""The games of the Arcade Learning Environment by name; imports ale_py only where a game is looked up."""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path

__all__ = ["ATARI_100K_GAMES", "rom_path"]

ATARI_100K_GAMES = (
    "Alien",
    "Amidar",
    "Assault",
    "Asterix",
    "BankHeist",
    "BattleZone",
    "Boxing",
    "Breakout",
    "ChopperCommand",
    "CrazyClimber",
    "DemonAttack",
    "Freeway",
    "Frostbite",
    "Gopher",
    "Hero",
    "Jamesbond",
    "Kangaroo",
    "Krull",
    "KungFuMaster",
    "MsPacman",
    "Pong",
    "PrivateEye",
    "Qbert",
    "RoadRunner",
    "Seaquest",
    "UpNDown",
)


def rom_path(game: str) -> Path:
    """Returns where the game's ROM is, which comes with ale_py.

    Args:
        game (str): Its short name, such as "MsPacman".

    Raises:
        ImportError: if ale_py is not installed.
        ValueError: if there is no such game, with close matches, or if it cannot be played by one player alone.

    Examples:
        >>> from mcurl_torchrl.envs.atari_games import rom_path
        >>> rom_path("MsPacman").name
        'ms_pacman.bin'
    """
    if importlib.util.find_spec("ale_py") is None:
        raise ImportError("make_atari_env needs ale_py: pip install 'mcurl-torchrl[atari]'")
    from ale_py import ALEInterface, roms

    rom_ids = {rom_id.title().replace("_", ""): rom_id for rom_id in roms.get_all_rom_ids()}
    if game not in rom_ids:
        names = {name.lower(): name for name in rom_ids}
        close = [names[match] for match in difflib.get_close_matches(str(game).lower(), names)]
        raise ValueError(f"game={game!r}; did you mean one of {close or sorted(rom_ids)}?")
    path = roms.get_rom_path(rom_ids[game])
    # Asked here, because loading such a ROM ends the whole process.
    if path is None or ALEInterface.isSupportedROM(path) is None:
        raise ValueError(f"game={game!r}; the Arcade Learning Environment cannot play it with one player")
    return path
