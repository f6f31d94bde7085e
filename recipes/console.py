"""The command `mcurl`: one door to the scripts of recipes/, which it starts as they are.

    mcurl train sac env=cartpole-swingup preset=cpu
    mcurl runs
    mcurl play roadrunner

Without a command it lists them all. Help and wrong words are answered at once: torch, which takes seconds, is imported
by what needs it.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A script of recipes/, and what it is for."""

    script: str
    usage: str
    purpose: str
    has_config: bool = True  # Hydra composes its settings


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
    "suite": Command("suite", "suite=NAME [jobs=N]", "run many: environments, algorithms, seeds", has_config=False),
    "report": Command("report", "runs=DIR [out=DIR]", "make one page of many runs"),
    "evaluate": Command("evaluate", "run=RUN_DIR [pack=DIR]", "score, film, export and pack what a run has learned"),
    "runs": Command("runs", "[DIR ...]", "list runs: state, step, return, age", has_config=False),
    "compare": Command("compare", "RUN_DIR RUN_DIR", "say how two runs differ", has_config=False),
    "play": Command("play", "[NAME | DIR]", "play a trained policy and film it, without training", has_config=False),
}
HELP, VERSION, COMPLETION = ("-h", "--help", "help"), ("--version", "version"), ("-sc", "--shell-completion")
GROUPS = {name.split()[0] for name in COMMANDS if " " in name}  # words that need a second one
words: list[str] = []  # of the command under way, with which it is started again; none where a script was started


def main(arguments: list[str] | None = None) -> None:
    """Starts the script of a command, in this process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in HELP:
        print(overview())
        return
    if arguments[0] in VERSION:
        print(f"mcurl_torchrl {version()}")
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
        sys.exit(f"mcurl: {wrong(arguments[:count])}\n`mcurl --help` lists all commands")
    words[:] = ["mcurl", *arguments[:count]]
    sys.argv[1:] = arguments[count:]
    # As `python recipes/SCRIPT.py` does it, but that its folder is not searched for modules.
    runpy.run_module(f"recipes.{COMMANDS[name].script}", run_name="__main__", alter_sys=True)


def overview(group: str = "") -> str:
    """Lists the commands, all or those that begin with a word."""
    shown = {name: command for name, command in COMMANDS.items() if name.split()[0] == group or not group}
    lines = [f"  mcurl {name + ' ' + command.usage:54}  {command.purpose}" for name, command in shown.items()]
    more = "Settings are written key=value; `mcurl COMMAND --help` lists those of a command."
    return "\n".join(["usage:", *lines, "", more, 'Completion in bash: eval "$(mcurl -sc install=bash)"'])


def version() -> str:
    """Returns the version of the package, which is not imported."""
    from importlib.metadata import version as installed

    return installed("mcurl-torchrl")


def wrong(typed: list[str]) -> str:
    """Says what is wrong with a command, and which ones are close to it."""
    from recipes.command_line import did_you_mean

    if typed[0] in GROUPS:
        choices = [name.split()[1] for name in COMMANDS if name.startswith(f"{typed[0]} ")]
        if len(typed) == 1:
            return f"{typed[0]} what? choose one of {', '.join(choices)}"
        return f"{' '.join(typed)}: {did_you_mean(typed[1], choices)}"
    first = list(dict.fromkeys(name.split()[0] for name in COMMANDS))
    return f"there is no command {typed[0]!r}; {did_you_mean(typed[0], first)}"


# -- completion in a shell ---------------------------------------------------------------------------------------------


def complete(arguments: list[str]) -> None:
    """Answers as Hydra does: installs the completion, or prints what may follow the line in COMP_LINE."""
    line = os.environ.get("COMP_LINE", "")
    _, _, rest = line.lstrip().partition(" ")
    typed = rest.split()
    done = typed if line.endswith(" ") else typed[:-1]  # the last word may be half of one
    name = next((name for name in COMMANDS if done[: len(name.split())] == name.split()), None)
    asks = bool(arguments) and arguments[0].startswith("query=")
    if asks and name is None:
        beginnings = (words for words in map(str.split, COMMANDS) if words[: len(done)] == done)
        print(" ".join(sorted({words[len(done)] for words in beginnings if len(words) > len(done)})))
        return
    if asks and name is not None and not COMMANDS[name].has_config:
        print(" ".join(words_of(name)))
        return
    import hydra

    from recipes.command_line import config_folder

    script = "sac_mcurl" if name is None else COMMANDS[name].script
    os.environ["COMP_LINE"] = line.replace(f"{name} ", "", 1) if name else line  # Hydra takes off one word
    sys.argv = ["mcurl", "-sc", *arguments]
    hydra.main(version_base="1.3", config_path=str(config_folder(script)), config_name=script)(lambda cfg: None)()


def words_of(name: str) -> list[str]:
    """Returns what may follow a command without a config of Hydra's."""
    if name == "suite":
        from recipes.suites.definition import suite_names

        return [f"suite={suite}" for suite in suite_names()]
    if name == "play":
        from recipes.policies import shipped

        return shipped()
    return []
