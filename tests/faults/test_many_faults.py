"""Both recipes, with the replay in memory and on disk: killed, damaged and without room, at random points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.stopping import RUN
from tests.recipes.running import RECIPES, SMALL

SETTINGS = {
    "sac_mcurl": RUN,
    "rainbow_mcurl": [
        *SMALL,
        *("env=gym", "env.id=tests.recipes.faulty_envs:Buttons-v0", "evaluation.video=false", "replay.capacity=200"),
        *("total_env_steps=40", "rainbow.first_update_agent_steps=20", "rainbow.target_interval_agent_steps=15"),
        *("checkpoint.interval_agent_steps=10", "evaluation.interval_env_steps=20", "evaluation.num_envs=1"),
        *("evaluation.episodes=2", "evaluation.final_episodes=2"),
    ],
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("fault", "count"), [("kill", 50), ("flip", 50), ("fill", 13)])
@pytest.mark.parametrize("memmap", [False, True], ids=["memory", "memmap"])
@pytest.mark.parametrize("recipe", SETTINGS)
def test_the_same_bits_or_a_refusal(recipe: str, memmap: bool, fault: str, count: int, tmp_path: Path):
    words = [fault, recipe, str(count), "1", str(tmp_path), *SETTINGS[recipe], f"replay.memmap={memmap}"]
    command = [sys.executable, "-m", "tests.faults.many_faults", *words]
    environment = os.environ | {"PYTHONPATH": str(RECIPES.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=RECIPES.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(done.stdout.splitlines()[-1]).values()) >= count
    print(done.stdout)
