"""Compiled losses and losses in bfloat16: the updates of every recipe and objective against eager float32."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch._dynamo.utils import counters

from mcurl_torchrl.agents import Agent, Computing
from mcurl_torchrl.modules import GaussianHead, QHead
from recipes import ppo_mcurl, rainbow_mcurl, sac_mcurl
from recipes.command_line import BadCommand
from recipes.launch import check_settings
from tests.recipes import running
from tests.recipes.test_objective_updates import make_learner

CPU = torch.device("cpu")
MODULES = {"sac": sac_mcurl, "rainbow": rainbow_mcurl, "ppo": ppo_mcurl}
LOSSES = {"sac": ["critic_loss", "actor_loss"], "rainbow": ["value"], "ppo": ["loss"]}
OBJECTIVES = ("mcurl", "mcurl_actions", "sym_curl", "curl", "seq_curl", "mlr", "cpc", "spr")
EVERY = [(recipe, algo) for recipe in MODULES for algo in OBJECTIVES]
WITH_DROPOUT = ("mcurl", "mcurl_actions", "sym_curl")
SOME = [("sac", "mcurl"), ("rainbow", "mcurl"), ("ppo", "mcurl"), ("rainbow", "spr")]


def slow_but_for(quick: list[tuple[str, str]]) -> list:
    return [pytest.param(*case, marks=() if case in quick else pytest.mark.slow, id="-".join(case)) for case in EVERY]


def draw(module: ModuleType, agent: Agent, buffer) -> tuple[TensorDictBase, TensorDictBase]:
    sampled = buffer.sample()
    views = agent.task.sample(sampled)
    if module is not ppo_mcurl:
        return sampled, views
    steps = agent.losses.estimate(sampled.reshape(2, -1))
    return steps.flatten(), views


def updated(
    recipe: str, algo: str, folder: Path, computing: Computing | None, *more: str, updates: int = 3
) -> tuple[Agent, list[dict[str, Tensor]]]:
    """Takes updates from the same start on the same data; returns the agent and the metrics of each update."""
    torch.manual_seed(0)
    module = MODULES[recipe]
    agent, buffer = make_learner(module, algo, folder, *more)
    agent.computing = computing
    metrics = []
    for number in range(updates):
        torch.manual_seed(number)
        agent.begin_step(agent.first_update_step + number)
        metrics.append(agent.update(*draw(module, agent, buffer), measure=True))
    return agent, metrics


def tensors_of(agent: Agent) -> dict[str, Tensor]:
    """Everything that an update changes, by name."""
    found = {}
    for name, part in {"policy": agent.policy, **agent.components()}.items():
        if not isinstance(part, torch.nn.Module):
            continue
        found |= {f"{name}.{key}": value for key, value in part.state_dict().items() if isinstance(value, Tensor)}
    return found


class TestCompiled:
    @pytest.mark.parametrize(("recipe", "algo"), slow_but_for([("rainbow", "mcurl")]))
    @pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
    def test_equals_eager(self, recipe: str, algo: str, backend: str, tmp_path: Path) -> None:
        """Three updates, each loss one graph, compiled once. CPC's GRU breaks its loss, as docs/gpu.md states."""
        # TorchRL's compiled PPO loss draws an entropy that it does not use: what is drawn after it is something else.
        more = ["objective.dropout=0"] if recipe == "ppo" and algo in WITH_DROPOUT else []
        expected, expected_metrics = updated(recipe, algo, tmp_path, None, *more)
        torch._dynamo.reset()
        counters.clear()
        # Behind its break, CPC's InfoNCE is compiled for each number of steps ahead, which are shapes of their own.
        with torch._dynamo.config.patch(error_on_recompile=algo != "cpc"):
            compiling = Computing(CPU, compile=True, backend=backend)
            agent, metrics = updated(recipe, algo, tmp_path, compiling, *more)
        graphs, losses = counters["stats"]["unique_graphs"], len(LOSSES[recipe]) + 1
        # A GRU, which is not compiled at all, does not count as a break: more graphs than losses tell of it.
        assert not counters["graph_break"]
        assert graphs > losses if algo == "cpc" else graphs == losses
        torch.testing.assert_close(metrics, expected_metrics, rtol=1e-3, atol=1e-4)
        # A tenth of a step of Adam, which makes whole steps of gradients that are nothing but rounding.
        torch.testing.assert_close(tensors_of(agent), tensors_of(expected), rtol=1e-3, atol=1e-4)

    @pytest.mark.slow
    @pytest.mark.timeout(1200)
    @pytest.mark.parametrize("recipe", MODULES)
    def test_inductor_equals_eager(self, recipe: str, tmp_path: Path) -> None:
        expected, expected_metrics = updated(recipe, "mcurl", tmp_path, None, "objective.dropout=0")
        torch._dynamo.reset()
        agent, metrics = updated(recipe, "mcurl", tmp_path, Computing(CPU, compile=True), "objective.dropout=0")
        torch.testing.assert_close(metrics, expected_metrics, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(tensors_of(agent), tensors_of(expected), rtol=1e-3, atol=3e-4)

    def test_without_a_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CXX", raising=False)
        with pytest.raises(BadCommand, match=r"compile=True needs a C\+\+ compiler, and neither g\+\+ nor clang\+\+"):
            check_settings(running.settings("compile=true"))
        monkeypatch.setenv("CXX", "my-c++")
        with pytest.raises(BadCommand, match=r"CXX=my-c\+\+ was not found"):
            check_settings(running.settings("compile=true"))
        check_settings(running.settings())

    def test_cuda_graphs_need_a_gpu(self) -> None:
        with pytest.raises(BadCommand, match="cuda_graphs=True needs compile=True and a GPU; got compile=True.*cpu"):
            check_settings(running.settings("compile=true", "cuda_graphs=true", "device=cpu"))


class TestBfloat16:
    @pytest.mark.parametrize(("recipe", "algo"), slow_but_for(SOME))
    def test_is_close_to_float32(self, recipe: str, algo: str, tmp_path: Path) -> None:
        """The losses, and the direction of the gradient."""
        # SPR's chain of predictions is chaotic on maps of one pixel.
        with_head = (recipe, algo) == ("rainbow", "spr")
        size = ["env.image_size=84", "rainbow.batch_size=32"] if with_head else []
        expected, expected_metrics = updated(recipe, algo, tmp_path, None, *size, updates=1)
        rounding = Computing(CPU, precision="bfloat16")
        agent, metrics = updated(recipe, algo, tmp_path, rounding, *size, updates=1)
        losses = [name for name in metrics[0] if name.startswith("loss_")]
        for name in losses:
            torch.testing.assert_close(metrics[0][name], expected_metrics[0][name], rtol=0.05, atol=0.05)
        differ = [not torch.equal(metrics[0][name], expected_metrics[0][name]) for name in losses]
        assert any(differ), "nothing was rounded"
        ours, theirs = (
            [value.grad for value in agent.policy.parameters() if value.grad is not None] for agent in (agent, expected)
        )
        assert [grad.shape for grad in ours] == [grad.shape for grad in theirs]
        flat = [torch.cat([grad.flatten() for grad in grads]) for grads in (ours, theirs)]
        least = 0.9 if with_head else 0.95  # on feature maps, SPR rounds a lot at each of its five steps ahead
        assert torch.cosine_similarity(*flat, dim=0) > least

    @pytest.mark.parametrize("recipe", MODULES)
    def test_everything_that_stays_is_float32(self, recipe: str, tmp_path: Path) -> None:
        agent, metrics = updated(recipe, "mcurl", tmp_path, Computing(CPU, precision="bfloat16"), updates=2)
        assert {value.dtype for value in metrics[-1].values()} == {torch.float32}
        stays = [value.dtype for value in tensors_of(agent).values() if value.is_floating_point()]
        stays += [value.grad.dtype for value in agent.policy.parameters() if value.grad is not None]
        optimizers = [part for part in agent.components().values() if isinstance(part, torch.optim.Optimizer)]
        states = [value for part in optimizers for state in part.state.values() for value in state.values()]
        assert states and set(stays) | {value.dtype for value in states} == {torch.float32}

    def test_values_and_distributions_of_actions_are_float32(self) -> None:
        latents, actions = torch.rand(3, 8), torch.rand(3, 2)
        with Computing(CPU, precision="bfloat16").autocast():
            assert nn.Linear(8, 2)(latents).dtype == torch.bfloat16
            assert QHead(8, 2, hidden_dim=4)(latents, actions).dtype == torch.float32
            assert {out.dtype for out in GaussianHead(8, 2, hidden_dim=4)(latents)} == {torch.float32}

    def test_what_acts_is_not_rounded(self, tmp_path: Path) -> None:
        agent, buffer = make_learner(sac_mcurl, "sac", tmp_path, "precision=bfloat16")
        observations = buffer.sample()["pixels"]
        assert agent.computing.dtype == torch.bfloat16
        assert torch.equal(agent.exploit(observations), agent.policy(observations))

    @pytest.mark.parametrize(
        ("precision", "message"),
        [
            ("float16", "precision='float16'; its small gradients become 0 without loss scaling.*choose 'bfloat16'"),
            ("half", r"precision='half'; choose one of \['float32', 'bfloat16'\]"),
        ],
    )
    def test_other_precisions_are_refused(self, precision: str, message: str) -> None:
        with pytest.raises(BadCommand, match=message):
            check_settings(running.settings(f"precision={precision}"))
