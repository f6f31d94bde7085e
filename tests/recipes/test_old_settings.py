"""Settings of earlier versions: what their keys mean today. Old runs can be resumed, and averaged with new ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from mcurl_torchrl.training import RunDirectory
from recipes import launch, resuming
from recipes.command_line import MOVED
from recipes.old_settings import CAME_LATER, LATER_IN_SECTIONS, as_of_today
from recipes.reports.groups import compared, differing_keys, group_runs
from recipes.reports.runs import find_runs, read_run
from recipes.resuming import flat
from recipes.schema import PPORecipeConfig, RainbowRecipeConfig, SACRecipeConfig
from tests.recipes import running

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SCHEMAS = {"sac_mcurl": SACRecipeConfig, "rainbow_mcurl": RainbowRecipeConfig, "ppo_mcurl": PPORecipeConfig}
# Settings that changed on purpose since these runs: seeds from before and after are not averaged.
PPO_TASK = {"ppo.auxiliary_phase", "objective.temperature"}  # of runs with a task; PPO alone has kept its settings
CHANGED = {
    "sac_sizes": {"env.camera_id"},
    "sac_batch": {"env.camera_id"},
    "sac_cpu": {"env.camera_id"},
    "beyond_cpu": {"env.camera_id"},
    "ppo_cpu": {"evaluation.epsilon", "evaluation.sample", *PPO_TASK},
    "ppo_dense_cpu": {"evaluation.epsilon", "evaluation.sample", *PPO_TASK},
    "ppo_drawn": PPO_TASK,
}
# The first looks are from before objectives had a section of their own.
KEPT = sorted(path.parent for path in RESULTS.glob("*/*_mcurl/*/*/config.yaml") if "first_looks" not in path.as_posix())


@pytest.mark.parametrize(
    ("recipe", "argument"),
    [
        ("sac_mcurl", "encoder.augmentation=center_crop"),
        ("rainbow_mcurl", "rainbow.augmentation=none"),
        ("ppo_mcurl", "ppo.augmentation=shift"),
        ("sac_mcurl", "objective.intensity_scale=0"),
    ],
)
def test_an_old_key_is_refused_with_the_new_one(recipe: str, argument: str) -> None:
    with pytest.raises(launch.BadCommand, match=r"no setting .* any more; it is augmentation"):
        launch.prepare([argument], SCHEMAS[recipe], launch.config_folder(recipe))
    assert argument.partition("=")[0] in MOVED


def test_a_run_of_an_earlier_version_has_the_settings_of_today() -> None:
    old = OmegaConf.to_container(
        OmegaConf.load(RESULTS / "atari_cpu/rainbow_mcurl/RoadRunner/rainbow-seed1/config.yaml")
    )
    assert old["rainbow"]["augmentation"] == "shift" and "augmentation" not in old
    overrides = ["env=RoadRunner", "algo=rainbow", "preset=cpu", "seed=1"]
    now = OmegaConf.to_container(running.settings(*overrides, recipe="rainbow_mcurl"), resolve=True)
    changed = {key for key, _ in resuming.differences(as_of_today(old), now)}
    assert not [key for key in changed if "augmentation" in key]
    assert "rainbow.augmentation" in dict(resuming.differences(old, now))
    assert as_of_today(now) == now


def test_old_runs_are_resumed_and_reported_with_the_settings_of_today() -> None:
    folder = RESULTS / "atari_cpu/rainbow_mcurl/RoadRunner/rainbow-seed1"
    assert resuming.saved_config(RunDirectory(folder))["augmentation"]["views"] == "curl_shift"
    (run,) = find_runs([folder]).runs
    assert run.settings["augmentation.batch"] == "none" and "rainbow.augmentation" not in run.settings


def test_runs_from_before_a_setting_are_averaged_with_runs_that_have_its_value_of_then() -> None:
    suite = RESULTS / "sac_sizes/sac_mcurl/cartpole-swingup"
    settings = [OmegaConf.load(suite / f"mcurl-size60-seed{seed}" / "config.yaml") for seed in (2, 3)]
    assert "resets" not in settings[0] and "resets" in settings[1]
    grouping = group_runs(find_runs([suite]).runs)
    assert [(group.method, group.seeds) for group in grouping.groups] == [("mcurl-size60", [1, 2, 3])]
    assert not grouping.splits


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: "-".join(folder.relative_to(RESULTS).parts))
def test_a_committed_run_has_the_settings_of_a_new_seed(folder: Path) -> None:
    """Then it can be resumed, and averaged with new seeds of the same command."""
    run = read_run(folder, None)
    words = RunDirectory(folder).read_manifest()["overrides"]
    now = OmegaConf.to_container(running.settings(*words, recipe=run.recipe), resolve=True)
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in flat(now)}
    again = dataclasses.replace(run, settings=settings)
    changed = CHANGED.get(folder.relative_to(RESULTS).parts[0], set())
    if run.settings["algo_name"] == "ppo":
        changed = changed - PPO_TASK
    assert set(differing_keys([compared(run), compared(again)])) <= changed


@pytest.mark.parametrize(
    ("section", "kind", "batch", "views"),
    [
        ("encoder", "random_crop", "crop", "crop"),
        ("encoder", "center_crop", "none", "crop"),
        ("rainbow", "none", "none", "none"),
        ("ppo", "shift", "none", "curl_shift"),
    ],
)
def test_what_the_old_keys_meant(section: str, kind: str, batch: str, views: str) -> None:
    old = {section: {"augmentation": kind, "x": 1}, "objective": {"name": "mlr", "intensity_scale": 0.05}, "seed": 3}
    expected = {
        **CAME_LATER,
        section: {"x": 1, **LATER_IN_SECTIONS.get(section, {}).get(section, {})},
        "objective": {"name": "mlr"},
        "seed": 3,
        "augmentation": {
            "batch": batch,
            "batch_intensity": 0.0,
            "views": views,
            "views_intensity": 0.05,
            "second_next": False,
        },
    }
    found = as_of_today(old)
    assert {key: found[key] for key in expected} == expected
