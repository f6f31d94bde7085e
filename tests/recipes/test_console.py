"""The command `mcurl`: it has every script, prints help and errors without torch, and completes in a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes import console

RECIPES = Path(console.__file__).parent
# As the installed command does it; then whether torch was imported on the way.
PROGRAM = """
import sys
from recipes.console import main
sys.argv[0] = "mcurl"
try:
    main()
finally:
    print("torch" if "torch" in sys.modules else "no torch")
"""


def mcurl(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, **environment})


def test_every_script_has_a_command() -> None:
    scripts = {file.stem for file in RECIPES.glob("*.py") if '__name__ == "__main__"' in file.read_text("utf-8")}
    assert scripts == {command.script for command in console.COMMANDS.values()}
    for command in console.COMMANDS.values():
        assert bool(list(RECIPES.glob(f"conf/*/{command.script}.yaml"))) == (
            command.has_config or command.script == "play"
        )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "mcurl train rainbow"),
        ("--help", "mcurl compare RUN_DIR RUN_DIR"),
        ("--version", "mcurl_torchrl 0."),
        ("train --help", "mcurl train ppo"),
        ("train sac --help", "random_agent_steps"),
        ("runs -h", "The last written run comes first"),
        ("play --help", "num_envs"),
    ],
)
def test_help_needs_no_torch(tmp_path: Path, arguments: str, said: str) -> None:
    done = mcurl(tmp_path, *arguments.split())
    assert done.returncode == 0, done.stderr
    assert said in done.stdout and done.stdout.splitlines()[-1] == "no torch"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("trian sac", "mcurl: there is no command 'trian'; did you mean train"),
        ("train", "mcurl: train needs an agent: choose one of sac, rainbow, ppo"),
        ("train rainbwo", "mcurl: train rainbwo: did you mean rainbow?"),
        ("train sac seeed=3", "mcurl train sac: there is no setting 'seeed'; did you mean seed"),
        ("suite suite=smok", "mcurl suite: suite=smok: did you mean smoke"),
        ("runs here", "mcurl runs: here: there is no such folder"),
        ("runs limit=3", "mcurl runs: limit=3: there is no such option"),
        ("compare one", "mcurl compare: give two run directories; got 1: one"),
        ("compare one other", "mcurl compare: one: there is no such folder"),
        ("play roadruner", "no trained policy of that name; choose cartpole-swingup or roadrunner."),
        ("play cheetah-run", "roadrunner. To train one: mcurl train sac env=cheetah-run preset=cpu"),
        ("play roadrunner episods=2", "there is no setting 'episods'; did you mean episodes"),
    ],
)
def test_a_wrong_command_needs_no_torch(tmp_path: Path, arguments: str, said: str) -> None:
    done = mcurl(tmp_path, *arguments.split())
    assert done.returncode == 1
    assert said in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == "no torch\n"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_hydra_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is installed without the recipes' packages, but the command is there."""
    monkeypatch.setitem(sys.modules, "hydra", None)
    with pytest.raises(SystemExit, match=r"Hydra is missing: pip install 'mcurl-torchrl\[recipes\]'"):
        console.main(["runs"])


def test_bash_completes_words_and_settings(tmp_path: Path) -> None:
    """In a real bash, with the function that the command installs."""
    (tmp_path / "mcurl").write_text(f"#!{sys.executable}\nfrom recipes.console import main\nmain()\n")
    (tmp_path / "mcurl").chmod(0o755)
    script = """
    eval "$(mcurl -sc install=bash)"
    try() {
        words=($1); COMP_LINE=$1; COMP_POINT=${#1}; COMP_CWORD=$2; COMPREPLY=()
        hydra_bash_completion
        echo "${COMPREPLY[*]}"
    }
    complete -p mcurl
    try "mcurl tr" 1
    try "mcurl train " 2
    try "mcurl train sac env=cartpole-swing" 3
    try "mcurl train rainbow rainbow.n_" 3
    try "mcurl play " 2
    try "mcurl suite suite=sm" 2
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "PATH": path})
    assert done.stdout.splitlines() == [
        "complete -o default -o nospace -F hydra_bash_completion mcurl",
        "train",
        "ppo rainbow sac",
        "env=cartpole-swingup env=cartpole-swingup_sparse",
        "rainbow.n_step=",
        "cartpole-swingup roadrunner",
        "suite=smoke",
    ], done.stderr


def test_a_stopped_run_says_how_to_go_on_in_the_words_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from mcurl_torchrl.training import Checkpoints, RunDirectory
    from recipes.resuming import how_to_resume

    directory = RunDirectory(tmp_path)
    Checkpoints(directory.checkpoints).save(5, components={"policy": torch.nn.Linear(1, 1)})
    assert f"sys.orig {sys.orig_argv[0]}".split()[1] in how_to_resume(directory)
    monkeypatch.setattr(console, "words", ["mcurl", "train", "sac"])
    assert how_to_resume(directory).endswith(f"\n  mcurl train sac resume={tmp_path}")


def test_a_refused_play_leaves_the_current_folder_alone(tmp_path: Path) -> None:
    done = mcurl(tmp_path, "play", "roadrunner", "device=nonsense")
    assert done.returncode == 1 and "mcurl play: device=nonsense cannot be used here" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_trains_what_the_script_trains(tmp_path: Path) -> None:
    from tests.recipes.running import SMALL, RunDirectory, results

    settings = ["env=Pong", *SMALL, "seed=3", "threads=1", "total_env_steps=60"]
    done = mcurl(tmp_path, "train", "rainbow", *settings, "hydra.run.dir=command")
    assert done.returncode == 0, done.stderr
    script = [sys.executable, str(RECIPES / "rainbow_mcurl.py"), *settings, "hydra.run.dir=script"]
    subprocess.run(script, cwd=tmp_path, check=True, capture_output=True)
    assert results(RunDirectory(tmp_path / "command")) == results(RunDirectory(tmp_path / "script"))
