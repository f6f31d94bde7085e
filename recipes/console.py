"""The command `mcurl`, which starts the scripts of recipes/.

    mcurl train sac env=cartpole-swingup preset=cpu
    mcurl runs
    mcurl play roadrunner

Without arguments it lists all commands. Help, and errors in the command line, are printed at once: torch, whose import
takes seconds, is imported only by the scripts that need it.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A script of recipes/, with its usage and its purpose."""

    script: str
    usage: str
    purpose: str
    has_config: bool = True  # whether Hydra composes its settings


COMMANDS = {
    "train sac": Command("sac_mcurl", "[env=TASK] [algo=ALGO] [preset=cpu]", "train SAC on DMControl or Gymnasium"),
    "train rainbow": Command(
        "rainbow_mcurl", "[env=GAME] [algo=ALGO] [preset=cpu]", "train Rainbow on Atari or Gymnasium"
    ),
    "train ppo": Command(
        "ppo_mcurl", "[env=GAME] [algo=ALGO] [preset=cpu]", "train PPO, several environments at a time"
    ),
    "pretrain": Command("pretrain", "[preset=smoke]", "train an encoder without rewards"),
    "probe": Command("probe", "encoders=FILE [env=TASK]", "score encoders by a linear probe"),
    "suite": Command("suite", "suite=NAME [jobs=N]", "run all runs of a suite", has_config=False),
    "report": Command("report", "runs=DIR [out=DIR]", "write a report on many runs"),
    "evaluate": Command("evaluate", "run=RUN_DIR [pack=DIR]", "score, film, export and pack the policy of a run"),
    "runs": Command("runs", "[DIR ...]", "list runs: state, step, return, age", has_config=False),
    "compare": Command("compare", "RUN_DIR RUN_DIR", "show the differences between two runs", has_config=False),
    "play": Command("play", "[NAME | DIR]", "play a trained policy and film it", has_config=False),
}
HELP, VERSION, COMPLETION = ("-h", "--help", "help"), ("--version", "version"), ("-sc", "--shell-completion")
GROUPS = {name.split()[0] for name in COMMANDS if " " in name}  # first words of commands that have two, such as train
words: list[str] = []  # the current command, such as mcurl train sac; empty if a script was started directly


def main(arguments: list[str] | None = None) -> None:
    """Starts the script of a command, in this process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in HELP:
        print(overview())
        return
    if arguments[0] in VERSION:
        from importlib.metadata import version  # of the package, without importing it

        print(f"mcurl_torchrl {version('mcurl-torchrl')}")
        return
    if importlib.util.find_spec("hydra") is None:
        sys.exit("mcurl: Hydra is missing: pip install 'mcurl-torchrl[recipes]'")
    if arguments[0] in COMPLETION:
        complete(arguments[1:])
        return
    count = 2 if arguments[0] in GROUPS else 1
    name = " ".join(arguments[:count])
    if arguments[0] in GROUPS and len(arguments) > 1 and arguments[1] in HELP:
        print(overview(arguments[0]))
        return
    if name not in COMMANDS:
        sys.exit(f"mcurl: {explain_unknown(arguments[:count])}\n`mcurl --help` lists all commands")
    words[:] = ["mcurl", *arguments[:count]]
    sys.argv[1:] = arguments[count:]
    # Like `python recipes/SCRIPT.py`, except that the folder recipes/ is not put into sys.path.
    runpy.run_module(f"recipes.{COMMANDS[name].script}", run_name="__main__", alter_sys=True)


def overview(group: str = "") -> str:
    """Returns the list of all commands, or of the commands of a group, such as train."""
    shown = {name: command for name, command in COMMANDS.items() if name.split()[0] == group or not group}
    lines = [f"  mcurl {name + ' ' + command.usage:54}  {command.purpose}" for name, command in shown.items()]
    more = "Settings are written key=value; `mcurl COMMAND --help` lists those of a command."
    return "\n".join(["usage:", *lines, "", more, 'Completion in bash: eval "$(mcurl -sc install=bash)"'])


def explain_unknown(typed: list[str]) -> str:
    """Returns the error message for an unknown command, with similar commands."""
    from recipes.command_line import did_you_mean

    if typed[0] in GROUPS:
        choices = [name.split()[1] for name in COMMANDS if name.startswith(f"{typed[0]} ")]
        if len(typed) == 1:
            return f"{typed[0]} needs an agent: choose one of {', '.join(choices)}"
        return f"{' '.join(typed)}: {did_you_mean(typed[1], choices)}"
    first = list(dict.fromkeys(name.split()[0] for name in COMMANDS))
    return f"there is no command {typed[0]!r}; {did_you_mean(typed[0], first)}"


# -- completion in a shell ---------------------------------------------------------------------------------------------


def complete(arguments: list[str]) -> None:
    """Implements Hydra's flag -sc: installs the completion, or prints completions of the line in COMP_LINE."""
    line = os.environ.get("COMP_LINE", "")
    _, _, rest = line.lstrip().partition(" ")
    typed = rest.split()
    done = typed if line.endswith(" ") else typed[:-1]  # the last word may be incomplete
    name = next((name for name in COMMANDS if done[: len(name.split())] == name.split()), None)
    asks = bool(arguments) and arguments[0].startswith("query=")
    if asks and name is None:
        beginnings = (words for words in map(str.split, COMMANDS) if words[: len(done)] == done)
        print(" ".join(sorted({words[len(done)] for words in beginnings if len(words) > len(done)})))
        return
    if asks and name is not None and not COMMANDS[name].has_config:
        print(" ".join(completions_of(name)))
        return
    import hydra

    from recipes.command_line import config_folder

    script = "sac_mcurl" if name is None else COMMANDS[name].script
    os.environ["COMP_LINE"] = line.replace(f"{name} ", "", 1) if name else line  # Hydra itself removes one word
    sys.argv = ["mcurl", "-sc", *arguments]
    hydra.main(version_base="1.3", config_path=str(config_folder(script)), config_name=script)(lambda cfg: None)()


def completions_of(name: str) -> list[str]:
    """Returns the possible arguments of a command that has no Hydra config."""
    if name == "suite":
        from recipes.suites.definition import suite_names

        return [f"suite={suite}" for suite in suite_names()]
    if name == "play":
        from recipes.policies import shipped

        return shipped()
    return []
