"""Pre-training without rewards from end to end, at the size of preset=smoke, and agents that start from it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

from mcurl_torchrl import load_policy
from mcurl_torchrl.modules import load_encoder
from mcurl_torchrl.training import Checkpoints, RunDirectory, tables
from recipes import launch, pretrain, probe, resuming
from recipes.command_line import group_choices
from recipes.objective_files import drop_foreign_keys
from recipes.schema import PretrainConfig
from tests.recipes.running import RECIPES, SMALL, train
from tests.recipes.running import settings as recipe_settings
from tests.replay.test_datasets import atari_rows, vd4rl_rows, write_atari

CATCH = ["env=gym", "env.id=tests.learning.catch:Catch-v0", "evaluation.video=false", "evaluation.final_episodes=1"]
CATCH += ["evaluation.num_envs=1"]
SLICES = ["objective.slice_len=6"]  # an episode has seven observations
# What agents of preset=smoke have: 36 x 36 pixels, the nature encoder of PPO, data-efficient Rainbow's, and SAC's.
AGENTS = {
    "sac_mcurl": ["env=cartpole-swingup", "env.action_repeat=50", "total_env_steps=1500"],
    "rainbow_mcurl": [*CATCH, "total_env_steps=60"],
    "ppo_mcurl": [*CATCH, "total_env_steps=40", "evaluation.interval_env_steps=40"],
}
PRETRAIN = {
    "sac_mcurl": ["agent=sac"],
    "rainbow_mcurl": ["agent=rainbow", *CATCH[:2], "objective.slice_len=6", "probe.episodes=0"],
    "ppo_mcurl": ["agent=ppo", *CATCH[:2], "objective.slice_len=6", "probe.episodes=0"],
}


def settings(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(launch.config_folder("pretrain")), version_base="1.3"):
        cfg = compose("pretrain", overrides=["preset=smoke", *overrides])
    drop_foreign_keys(cfg)
    OmegaConf.set_readonly(cfg, True)
    return cfg


def run(folder: Path, *overrides: str) -> Path:
    pretrain.pretrain(settings(*overrides), folder)
    return folder / "encoder.pt"


@pytest.fixture(scope="module")
def of_sac(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder of SAC's, from the command line."""
    folder = tmp_path_factory.mktemp("pretrained") / "sac"
    command = [sys.executable, str(RECIPES / "pretrain.py"), "preset=smoke", "threads=1", f"hydra.run.dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "trained: R2" in done.stdout and "untrained: R2" in done.stdout
    return folder / "encoder.pt"


def test_what_it_leaves_behind(of_sac: Path):
    folder = of_sac.parent
    assert {path.name for path in folder.iterdir()} == {"encoder.pt", "metrics.csv", "probe.json", "config.yaml"}
    rows = tables.read(folder / "metrics.csv")
    assert [row["update"] for row in rows] == [5, 10]
    assert all(math.isfinite(row["loss_auxiliary"]) and 0 <= row["contrastive_accuracy"] <= 1 for row in rows)
    scores = json.loads((folder / "probe.json").read_text())
    assert set(scores) == {"trained", "untrained"} and len(scores["trained"]["r2_of"]) == 5
    assert scores["trained"]["r2"] != scores["untrained"]["r2"]
    encoder = load_encoder(of_sac)
    assert encoder.settings == {
        "in_channels": 9,
        "image_size": 32,
        "num_layers": 2,
        "num_filters": 4,
        "feature_dim": 16,
    }


@pytest.mark.parametrize("algo", ["curl", "seq_curl", "sym_curl", "cpc", "mlr", "mcurl_actions", "spr"])
def test_every_objective_trains_an_encoder(algo: str, tmp_path: Path):
    more = [] if algo in ("curl", "spr") else SLICES
    file = run(tmp_path, "agent=rainbow", *CATCH[:2], f"algo={algo}", "probe.episodes=0", *more)
    assert load_encoder(file).settings["architecture"] == "data_efficient"
    assert all(math.isfinite(row["loss_auxiliary"]) for row in tables.read(tmp_path / "metrics.csv"))


def test_a_job_that_is_started_again_begins_anew(tmp_path: Path):
    for _ in range(2):
        run(tmp_path, *PRETRAIN["rainbow_mcurl"])
    assert [row["update"] for row in tables.read(tmp_path / "metrics.csv")] == [5, 10]


def test_the_same_seed_gives_the_same_encoder(tmp_path: Path):
    once, again, other = (
        load_encoder(run(tmp_path / name, *PRETRAIN["rainbow_mcurl"], f"seed={seed}")).state_dict()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert not any(torch.equal(once[name], other[name]) for name in once)


# -- where the frames come from ----------------------------------------------------------------------------------------


def test_the_replay_of_a_run(tmp_path: Path):
    directory = train(tmp_path / "run", *SMALL, *AGENTS["rainbow_mcurl"], *SLICES, recipe="rainbow_mcurl")
    source = ["agent=rainbow", "data.source=replay", "objective.slice_len=6", "probe.episodes=0"]
    file = run(tmp_path / "a", *source, f"data.path='{directory.path}'")
    folder, name = pretrain.find_replay(directory.path)
    assert folder == directory.checkpoints / "replay" and (folder / f"{name}.json").is_file() and "60" in name
    assert load_encoder(file).settings["in_channels"] == 4
    pretrain.open_replay(folder, name).dumps(tmp_path / "saved")
    again = run(tmp_path / "b", *source, f"data.path='{tmp_path / 'saved'}'")
    assert all(
        torch.equal(value, load_encoder(again).state_dict()[name])
        for name, value in load_encoder(file).state_dict().items()
    )


def test_datasets_of_torchrl(tmp_path: Path):
    write_atari(tmp_path / "atari", [atari_rows([30, 20], 0)])
    common = ["probe.episodes=0", f"data.root='{tmp_path}/atari'", "env.image_size=84"]
    file = run(tmp_path / "a", "agent=rainbow", "env=Pong", "data.source=atari_dqn", "data.dataset=Pong/1", *common)
    assert load_encoder(file).settings["image_size"] == 84
    from torchrl.data.datasets import VD4RLExperienceReplay

    place = "main/walker_walk/random/64px"
    rows = vd4rl_rows([20, 20], {"image": "image"}, (64, 64, 3))
    VD4RLExperienceReplay._process_data(rows).memmap(tmp_path / "vd4rl" / place)
    source = ["data.source=vd4rl", f"data.dataset={place}", f"data.root='{tmp_path}/vd4rl'", "probe.episodes=0"]
    encoder = load_encoder(run(tmp_path / "b", *source, "encoder.crop_size=56"))
    assert (encoder.settings["in_channels"], encoder.settings["image_size"]) == (9, 56)


@pytest.mark.parametrize(("limit", "held"), [(1000, 20 + 20), (25, 20 + 6), (10, 10)])
def test_a_dataset_is_read_up_to_the_limit(limit: int, held: int, tmp_path: Path):
    rows = vd4rl_rows([20, 20], {"image": "observation"}, (3, 8, 8))
    from torchrl.data.datasets import VD4RLExperienceReplay

    VD4RLExperienceReplay._process_data(rows).memmap(tmp_path / "main/x")
    source = ["data.source=vd4rl", "data.dataset=main/x", f"data.root='{tmp_path}'", f"data.agent_steps={limit}"]
    buffer = pretrain.fill_buffer(settings(*source))
    assert len(buffer) == held  # an episode that was read to its end has its last observation, too


# -- agents that start from it -----------------------------------------------------------------------------------------


def test_the_rainbow_of_spr_starts_from_an_encoder_with_rescaled_features(tmp_path: Path):
    spr = ["encoder.architecture=nature", "encoder.rescale=true"]
    file = run(tmp_path / "encoder", *PRETRAIN["rainbow_mcurl"], *spr)
    assert load_encoder(file).settings["rescale"] is True
    rainbow = [*AGENTS["rainbow_mcurl"], "algo=rainbow", "rainbow.architecture=nature", "rainbow.rescale=true"]
    train(tmp_path / "run", *SMALL, *rainbow, f"encoder.init='{file}'", recipe="rainbow_mcurl")


@pytest.mark.parametrize("recipe", AGENTS)
@pytest.mark.parametrize("frozen", [False, True])
def test_an_agent_starts_from_it(recipe: str, frozen: bool, of_sac: Path, tmp_path: Path):
    file = of_sac if recipe == "sac_mcurl" else run(tmp_path / "encoder", *PRETRAIN[recipe])
    trained = load_encoder(file).state_dict()
    alone = {"sac_mcurl": "sac", "rainbow_mcurl": "rainbow", "ppo_mcurl": "ppo"}[recipe]
    start = [f"encoder.init='{file}'", *(["encoder.frozen=true", f"algo={alone}"] if frozen else [])]
    directory = train(tmp_path / "run", *SMALL, *AGENTS[recipe], *([] if frozen else SLICES), *start, recipe=recipe)
    steps = [saved.step for saved in Checkpoints(directory.checkpoints).list()]
    after = encoder_of(directory, steps[-1])
    same = [torch.equal(after[name], value) for name, value in trained.items()]
    assert all(same) if frozen else not any(same)
    assert math.isfinite(tables.read(directory.metrics.path)[-1]["loss_auxiliary"])


def test_a_resumed_run_does_not_need_the_file_any_more(of_sac: Path, tmp_path: Path):
    """Its encoder is in its checkpoint, and one that was frozen stays so."""
    file, folder = tmp_path / "encoder.pt", tmp_path / "run"
    file.write_bytes(of_sac.read_bytes())
    start = [*SMALL, *AGENTS["sac_mcurl"], "algo=sac", f"encoder.init='{file}'", "encoder.frozen=true"]
    train(folder, *start)
    file.unlink()
    longer = [*start, "total_env_steps=2000", f"resume='{folder}'", "resume_changed=true"]
    directory = train(folder, *longer)
    last = Checkpoints(directory.checkpoints).list()[-1]
    assert last.step == 40
    after, pretrained = encoder_of(directory, last.step), load_encoder(of_sac).state_dict()
    assert all(torch.equal(after[name], value) for name, value in pretrained.items())
    with pytest.raises(launch.BadCommand, match="there is no encoder file"):
        train(tmp_path / "other", *start, "resume=auto")


def encoder_of(directory: RunDirectory, step: int) -> dict[str, torch.Tensor]:
    network = load_policy(directory.path, which=step).network
    return getattr(network, "network", network).encoder.state_dict()


@pytest.mark.parametrize("recipe", AGENTS)
def test_all_copies_of_the_encoder_start_from_it(recipe: str, of_sac: Path, tmp_path: Path):
    """Target networks and momentum encoders, too: none is left as it was drawn."""
    file = of_sac if recipe == "sac_mcurl" else run(tmp_path / "encoder", *PRETRAIN[recipe])
    cfg = recipe_settings(*SMALL, *AGENTS[recipe], *SLICES, f"encoder.init='{file}'", recipe=recipe)
    module = sys.modules[f"recipes.{recipe}"]
    env = module.make_env(cfg.env, training=True)
    agent = module.make_agent(cfg, env, module.make_replay(cfg, tmp_path), torch.device("cpu"))
    weight = load_encoder(file).state_dict()["convs.0.weight"]
    found = {
        name: value
        for part in agent.components().values()
        if isinstance(part, torch.nn.Module)
        for name, value in part.state_dict().items()
        if name.endswith("convs.0.weight")
    }
    assert len(found) >= 2 and all(torch.equal(value, weight) for value in found.values()), list(found)


def test_a_run_of_before_there_was_such_a_section_can_be_resumed():
    cfg = recipe_settings(recipe="rainbow_mcurl")
    before = resuming.comparable(cfg)
    before.pop("encoder")
    assert list(resuming.differences(before, resuming.comparable(cfg))) == []


@pytest.mark.parametrize(
    ("recipe", "overrides", "answers"),
    [
        ("rainbow_mcurl", ["encoder.init=missing.pt"], ["encoder.init=missing.pt", "no encoder file"]),
        ("ppo_mcurl", ["encoder.frozen=true", "algo=ppo"], ["encoder.frozen=true without encoder.init"]),
        ("ppo_mcurl", ["encoder.frozen=true"], ["encoder.frozen=true with objective=mcurl", "nothing to train"]),
        ("sac_mcurl", ["encoder.num_filters=8"], ["num_filters=4, not 8"]),
        ("rainbow_mcurl", [], ["holds a PixelEncoder; the agent has a AtariEncoder"]),
    ],
)
def test_encoders_that_do_not_fit(recipe: str, overrides: list[str], answers: list[str], of_sac: Path, tmp_path: Path):
    init = (
        []
        if any(line.startswith(("encoder.init", "encoder.frozen")) for line in overrides)
        else [f"encoder.init='{of_sac}'"]
    )
    with pytest.raises((SystemExit, launch.BadCommand)) as raised:
        train(tmp_path / "run", *SMALL, *AGENTS[recipe], *init, *overrides, recipe=recipe)
    for answer in answers:
        assert answer in str(raised.value)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "answer"),
    [
        (["objective=none"], "pretraining needs an objective"),
        (["data.source=replay"], "needs data.path"),
        (["data.source=vd4rl"], "needs data.dataset"),
        (["updates=0"], "updates=0"),
        (["lr=-1"], "lr=-1"),
        (["probe.episodes=1"], "probe.episodes=1; the probe needs at least 2"),
        ([*CATCH[:2], "agent=rainbow", "objective.slice_len=6"], "probe.episodes=0 trains without it"),
    ],
)
def test_settings_that_do_not_fit(overrides: list[str], answer: str, tmp_path: Path):
    with pytest.raises(launch.BadCommand, match=answer):
        run(tmp_path, *overrides)
    assert not (tmp_path / "encoder.pt").exists()


def test_data_of_another_environment_is_refused_before_training(tmp_path: Path):
    directory = train(tmp_path / "run", *SMALL, *AGENTS["sac_mcurl"], "algo=sac")
    data = ["data.source=replay", f"data.path='{directory.path}'"]
    for other in ("env.image_size=72", "env.num_frames=4"):
        with pytest.raises(launch.BadCommand, match=f"are .9, 36, 36. .*{other}.*set them as the data was made"):
            run(tmp_path / "encoder", *data, other)
    assert not (tmp_path / "encoder" / "encoder.pt").exists()


def test_the_folder_of_a_run_is_not_used(tmp_path: Path):
    directory = train(tmp_path / "run", *SMALL, *AGENTS["sac_mcurl"], "algo=sac")
    before = directory.metrics.path.read_text(), directory.config.read_text()
    with pytest.raises(launch.BadCommand, match="is the folder of a run"):
        run(directory.path)
    assert (directory.metrics.path.read_text(), directory.config.read_text()) == before


@pytest.mark.parametrize("agent", group_choices("agent", launch.config_folder("pretrain")))
def test_encoders_are_those_of_the_agents(agent: str):
    """The sizes of agent=... are what the agents' own configs say."""
    with initialize_config_dir(str(launch.config_folder("pretrain")), version_base="1.3"):
        cfg = compose("pretrain", overrides=[f"agent={agent}"])
    OmegaConf.to_container(cfg, resolve=True, throw_on_missing=False)
    recipe, _, preset = agent.partition("_")
    theirs = recipe_settings(f"preset={preset or 'paper'}", recipe=f"{recipe}_mcurl")
    assert (cfg.env.num_frames, cfg.env.image_size) == (theirs.env.num_frames, theirs.env.image_size)
    keys = ["crop_size", "num_layers", "num_filters", "feature_dim"] if recipe == "sac" else ["architecture"]
    section = theirs.encoder if recipe == "sac" else theirs[recipe]
    assert {key: cfg.encoder[key] for key in keys} == {key: section[key] for key in keys}
    assert cfg.encoder.kind == ("pixel" if recipe == "sac" else "atari")


# -- the probe's command -----------------------------------------------------------------------------------------------


def test_encoders_are_scored_side_by_side(of_sac: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with initialize_config_dir(str(launch.config_folder("probe")), version_base="1.3"):
        cfg = compose(
            "probe", overrides=["env.image_size=36", "probe.episodes=3", "probe.agent_steps=10", "encoders=x"]
        )
    with open_dict(cfg):
        cfg.encoders = [str(of_sac)]
    probe.score_all(cfg, tmp_path)
    scores = json.loads((tmp_path / "probe.json").read_text())
    assert list(scores) == [str(of_sac)] and math.isfinite(scores[str(of_sac)]["r2"])
    assert f"{of_sac}: R2" in capsys.readouterr().out
    with open_dict(cfg):
        cfg.env.num_frames = 2
    with pytest.raises(launch.BadCommand, match="takes 9 channels of 32x32; the environment gives 6 of 36x36"):
        probe.score_all(cfg, tmp_path)
    with open_dict(cfg):
        cfg.encoders = "missing.pt"
    with pytest.raises(launch.BadCommand, match="no encoder file"):
        probe.score_all(cfg, tmp_path)


def test_an_unknown_setting_is_refused_with_what_is_close():
    with pytest.raises(launch.BadCommand, match=r"data\.source"):
        launch.prepare(["data.sources=random"], PretrainConfig, launch.config_folder("pretrain"))
