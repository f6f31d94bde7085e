"""Packed policies: the files that `evaluate.py pack=FOLDER` writes, playing them, and the policies of the package."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from mcurl_torchrl import load_policy
from mcurl_torchrl.training import Checkpoints, RunDirectory, read_policy_folder
from recipes import evaluate, play
from recipes.command_line import BadCommand
from recipes.model_card import card, pack
from recipes.policies import POLICIES, find_policy, shipped
from recipes.schema import EvaluateConfig, PlayConfig
from recipes.trained import open_trained
from tests.recipes.running import SMALL, settings, train
from tests.videos import read_video

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    overrides = ["env=Breakout", *SMALL, "env.max_emulator_frames=200", "total_env_steps=45", "seed=7"]
    return train(tmp_path_factory.mktemp("pack") / "run", *overrides, recipe="rainbow_mcurl")


@pytest.fixture(scope="module")
def packed(run: RunDirectory) -> Path:
    trained = open_trained(run.path, device=CPU)
    cfg = EvaluateConfig(str(run.path), episodes=4, seed=3, num_envs=2, epsilon=0.5, licence="mit")
    cfg.pack = str(run.path.parent / "packed")
    return pack(trained, trained.play(cfg), cfg, epsilon=0.5, sample=False)


def front_matter(card: Path) -> dict:
    _, metadata, _ = card.read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(metadata)


def test_the_folder_is_laid_out_as_on_the_hub(packed: Path) -> None:
    assert {file.name for file in packed.iterdir()} == {"README.md", "config.json", "model.safetensors", "replay.mp4"}
    config = read_policy_folder(packed)[0]
    scores, training = config["evaluation"], config["training"]
    assert training["seed"] == 7 and training["env_steps"] == 45 and training["recipe"] == "rainbow_mcurl"
    assert scores["mean"] == sum(scores["returns"]) / 4 and scores["interval"][0] <= scores["mean"]
    metadata = front_matter(packed / "README.md")
    assert metadata["license"] == "mit" and "reinforcement-learning" in metadata["tags"]
    (result,) = metadata["model-index"][0]["results"]
    assert result["dataset"]["name"] == "Breakout" and result["metrics"][0]["type"] == "mean_reward"
    assert result["metrics"][0]["value"] == round(scores["mean"], 1)
    written = (packed / "README.md").read_text(encoding="utf-8")
    for said in ("45 environment steps", "one run, seed 7", "over 4 episodes", "seed 3, 0.5 of the actions at random"):
        assert said in written


def test_a_card_says_what_is_not_known(run: RunDirectory, tmp_path: Path) -> None:
    trained = open_trained(run.path, device=CPU)
    cfg = EvaluateConfig(str(run.path), episodes=1, seed=3, video=False, pack=str(tmp_path))
    folder = pack(trained, trained.play(cfg), cfg, epsilon=0.0, sample=False)
    written = (folder / "README.md").read_text(encoding="utf-8")
    assert "| licence | none was stated |" in written and front_matter(folder / "README.md")["license"] == "unknown"
    assert "interval" not in written.split("| seeds")[0] and not (folder / "replay.mp4").exists()


def test_the_packed_policy_plays_as_the_run_does(run: RunDirectory, packed: Path) -> None:
    one, other = (open_trained(path, device=CPU) for path in (run.path, packed))
    assert one.env == other.env
    again = other.play(PlayConfig(episodes=4, seed=3, num_envs=2, epsilon=0.5, video=False))
    assert again.returns == read_policy_folder(packed)[0]["evaluation"]["returns"]
    assert one.play(PlayConfig(episodes=2, seed=5)).lengths == other.play(PlayConfig(episodes=2, seed=5)).lengths
    frame = torch.randint(256, (36, 36), dtype=torch.uint8)
    assert load_policy(packed)(frame) == load_policy(run.path)(frame)


def test_half_of_the_room_and_the_score_of_what_is_packed(
    run: RunDirectory, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = OmegaConf.create({"runtime": {"output_dir": str(tmp_path)}})
    monkeypatch.setattr(evaluate.HydraConfig, "get", lambda: config)
    asked = [f"run='{run.path}'", f"pack='{tmp_path / 'half'}'", "half=true", "episodes=3", "seed=4", "video=false"]
    evaluate.main(settings(*asked, recipe="evaluate"))
    about, state = read_policy_folder(tmp_path / "half")
    assert {value.dtype for name, value in state.items() if name.endswith(("weight", "bias"))} == {torch.float16}
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (tmp_path / "half", packed)]
    assert 0.45 < sizes[0] / sizes[1] < 0.6
    again = open_trained(tmp_path / "half", device=CPU)
    whole = open_trained(run.path, device=CPU).policy.network.for_acting().state_dict()
    for name, value in again.policy.network.named_parameters():
        assert value.dtype == torch.float32 and torch.equal(value, whole[name].half().float())
    scores = about["evaluation"]
    assert (
        again.play(PlayConfig(episodes=3, seed=4, epsilon=scores["epsilon"], video=False)).returns == scores["returns"]
    )


def test_play_prints_the_return_and_films(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    play.main(settings(f"policy={packed}", "episodes=2", recipe="play"))
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("episode 1: ") and said[2].startswith("mean return ")
    assert said[3].startswith("filmed: packed.mp4 (") and len(read_video("packed.mp4")) > 30  # 50 steps, less no-ops
    play.main(settings(f"policy={packed}", "video=false", recipe="play"))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_holds_no_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadCommand, match=f"run={tmp_path}: .* is not a run directory: it has no manifest.json"):
        play.main(settings(f"policy={tmp_path}", recipe="play"))
    with pytest.raises(BadCommand, match="device=nonsense cannot be used here"):
        evaluate.main(settings(f"run={tmp_path}", "device=nonsense", recipe="evaluate"))


def test_the_card_is_of_the_checkpoint_that_was_packed(run: RunDirectory, tmp_path: Path) -> None:
    """If the newest checkpoint is damaged, an older one plays."""
    folder = shutil.copytree(run.path, tmp_path / "run")
    *_, before, newest = Checkpoints(folder / "checkpoints").list()
    content = bytearray(newest.path.read_bytes())
    content[-20] ^= 1
    newest.path.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="is passed over"):
        trained = open_trained(folder, device=CPU)
    cfg = EvaluateConfig(str(folder), episodes=1, video=False)
    cfg.pack = str(tmp_path / "packed")
    pack(trained, trained.play(cfg), cfg, epsilon=0.0, sample=False)
    assert read_policy_folder(tmp_path / "packed")[0]["training"]["env_steps"] == before.step < newest.step


@pytest.mark.parametrize("kept", ["manifest.json", "checkpoints"])
def test_a_policy_is_not_packed_into_a_run(run: RunDirectory, kept: str, tmp_path: Path) -> None:
    (tmp_path / "other" / kept).mkdir(parents=True)
    with pytest.raises(BadCommand, match="is the folder of a run"):
        evaluate.main(settings(f"run={run.path}", f"pack={tmp_path / 'other'}", recipe="evaluate"))


# -- the policies of the package ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped())
def test_a_policy_of_the_package_is_small_and_says_how_good_it_is(name: str) -> None:
    folder = POLICIES / name
    assert sum(file.stat().st_size for file in folder.iterdir()) < 5e6
    about = read_policy_folder(folder)[0]
    scores, written = about["evaluation"], (folder / "README.md").read_text(encoding="utf-8")
    assert written == card(about, name, filmed=(folder / "replay.mp4").is_file())
    assert scores["mean"] == pytest.approx(sum(scores["returns"]) / scores["episodes"]) and about["licence"] == "mit"


def test_names_win_over_folders_and_paths_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roadrunner").mkdir()
    assert find_policy("roadrunner") == POLICIES / "roadrunner"
    assert find_policy("./roadrunner") == Path("roadrunner") and find_policy(".") == Path()
    ours, theirs = f"policy={tmp_path}/roadrunner", f"policy={POLICIES}/roadrunner"
    assert [play.name_policy([typed]) for typed in ("./roadrunner", "roadrunner/", "roadrunner")] == [
        [ours],
        [ours],
        [theirs],
    ]


def test_the_folder_of_a_sweep_has_settings_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env=Pong,seed=1").mkdir()
    assert play.name_policy(["env=Pong,seed=1", "episodes=2"]) == [f"policy='{tmp_path}/env=Pong,seed=1'", "episodes=2"]
    assert play.name_policy(["env=Pong"]) == ["env=Pong"]


def test_roadrunner_runs() -> None:
    """The first 12 seconds of three games, in which an untrained policy scores nothing."""
    trained = open_trained(find_policy("roadrunner"), device=CPU)
    OmegaConf.update(trained.env, "max_emulator_frames", 720)
    assert sum(trained.play(PlayConfig(episodes=3, num_envs=3, video=False)).returns) >= 1_000


@pytest.mark.slow
def test_roadrunner_scores_as_its_card_says() -> None:
    """Ten games; the card has the mean of 100, whose standard deviation is 5,000."""
    trained = open_trained(find_policy("roadrunner"), device=CPU)
    low, high = read_policy_folder(find_policy("roadrunner"))[0]["evaluation"]["interval"]
    assert low - 3_500 < trained.play(PlayConfig(episodes=10, seed=100, num_envs=10, video=False)).mean < high + 3_500
