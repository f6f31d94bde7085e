"""make_pixel_env with environments that people use, in a venv with their packages, which the first test installs."""

from __future__ import annotations

import json
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[2]
PACKAGES = ["gymnasium[box2d]", "minigrid==3.2.0", "vizdoom==1.3.2", "crafter==1.8.3"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A python with these packages, which borrows all others from the running environment."""
    folder = tmp_path_factory.mktemp("envs")
    venv.create(folder, with_pip=True, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n{REPO}\n", encoding="utf-8")
    install = [folder / "bin" / "python", "-m", "pip", "install", "-q", "-c", REPO / "constraints.txt", *PACKAGES]
    subprocess.run(install, check=True)
    return folder / "bin" / "python"


def play(python: Path, name: str) -> dict[str, Any]:
    """The program compares every frame, reward, action and end; what it counted comes back."""
    done = subprocess.run([python, REPO / "tests" / "envs" / "real_envs.py", name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "ends"),
    [
        ("car_racing", [96, 96, 3], ["truncated"]),
        ("car_racing_rendered", [400, 600, 3], []),
        ("minigrid", [40, 40, 3], ["terminated", "truncated"]),
        ("vizdoom", [240, 320, 3], ["terminated"]),
        ("crafter", [64, 64, 3], ["truncated"]),
    ],
)
def test_frames_rewards_actions_and_ends_are_the_environments_own(
    python: Path, name: str, shape: list[int], ends: list[str]
) -> None:
    counted = play(python, name)
    assert counted["shape"] == shape and counted["colours"] > 10  # no black screens
    assert all(counted[end] for end in ends)


@pytest.mark.slow
def test_the_symbols_of_minigrid_are_no_image(python: Path) -> None:
    small, large = play(python, "symbols")["said"]
    assert "at least 12: less is a board or a grid of symbols, not an image" in small
    assert "the image 'pixels', 16 x 16, has no number above 15 in its first 32 frames" in large


@pytest.mark.slow
def test_crafter_trains_by_the_command_of_its_example(python: Path, tmp_path: Path) -> None:
    code = "import sys; from recipes.console import main; sys.exit(main())"
    words = ["train", "rainbow", "env=gym", "env.id=crafter_env:Crafter-v0", "preset=smoke"]
    short = ["env.kwargs={length: 30}", "logging.tensorboard=false", "threads=1", f"hydra.run.dir={tmp_path}"]
    command = [python, "-c", code, *words, *short]
    done = subprocess.run(command, cwd=REPO / "examples", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "result.json").read_text())["finished"] is True
    alone = [python, "crafter_env.py", "--steps", "50"]
    done = subprocess.run(alone, cwd=REPO / "examples", capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "pixels [12, 64, 64] of torch.uint8"
