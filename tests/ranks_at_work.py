"""The functions that the tests of ranks run on two ranks, each with the same work in one process on the whole batch."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import Bounded, Categorical, LazyTensorStorage

from mcurl_torchrl import AuxiliaryTask, FrameReplayBuffer, PrioritizedTransitionSampler, RandomCrop
from mcurl_torchrl.agents import Resets
from mcurl_torchrl.modules import DuelingHead
from mcurl_torchrl.ranks import ALONE, DistributedRanks, RankLost, Ranks
from mcurl_torchrl.replay import torchrl_internals as internals
from tests.two_ranks import SEED

Pair = tuple[Tensor, Tensor]  # ours, and that of the whole batch


class Whole(Ranks):
    """One process that draws the numbers that all ranks have in common."""

    same_draws = DistributedRanks.same_draws

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(SEED)


def in_double_precision() -> None:
    """Uses double precision also where the package asks for single: rounding would hide small mistakes."""
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double


# -- losses ------------------------------------------------------------------------------------------------------------


def make_task(name: str, ranks: Ranks, **changed: Any) -> tuple[AuxiliaryTask, FrameReplayBuffer]:
    """Makes the task of an objective's file, small, with an agent's parts around it."""
    from recipes.building import wanted
    from tests.objectives.test_tasks import SMALL, class_of, make_parts, options_of

    torch.manual_seed(1)
    buffer, encoder = make_parts(name)
    buffer.share_with(ranks, "batch_size", 8)
    options = options_of(name)
    del options["name"], options["task"]
    options |= {key: value for key, value in {**SMALL, "num_slices": 4, **changed}.items() if key in options}
    head = DuelingHead(encoder.num_features, 3, hidden_dim=5) if name == "spr" else None
    offered = {"action_spec": Bounded(-1, 1, shape=(2,)) if head is None else Categorical(3), "head": head}
    offered["augmentation"] = RandomCrop(20)
    if changed.get("slow_keys"):
        offered["target_encoder"] = copy.deepcopy(encoder)
    made = class_of(name)
    task = made(encoder, buffer, **wanted(made, options, offered, name), **options)
    return task.double().train(), buffer


def losses_of_tasks(ranks: Ranks, cases: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Pair]]:
    """Returns, for each case, the loss, the metrics and the gradients, ours and those of the whole batch."""
    in_double_precision()
    return [loss_of_task(ranks, name, changed) for name, changed in cases]


def loss_of_task(ranks: Ranks, name: str, changed: dict[str, Any]) -> dict[str, Pair]:
    whole, buffer = make_task(name, ALONE, **changed)
    ours, _ = make_task(name, ranks, **changed)
    views = whole.sample(buffer.sample())
    expected = dict(whole(views).items())
    expected["loss_auxiliary"].backward()
    share = views[ranks.share_of("views", len(views))]
    found = dict(ours(share).items())
    found["loss_auxiliary"].backward()
    parameters = {key: dict(trained(task)) for key, task in (("ours", ours), ("whole", whole))}
    ranks.average_gradients(parameters["ours"].values())
    pairs = {key: (value, expected[key].detach()) for key, value in ranks.average(found).items()}
    for key, value in parameters["whole"].items():
        pairs[f"gradient of {key}"] = parameters["ours"][key].grad, value.grad
    for key, value in whole.state_dict().items():
        if "running_" in key:
            pairs[key] = ours.state_dict()[key], value
    if ("mcurl", "masked") in share.keys(True):
        pairs["masked"] = share["mcurl", "masked"].sum(), views["mcurl", "masked"].sum()
    return pairs


def trained(task: AuxiliaryTask) -> list[tuple[str, nn.Parameter]]:
    encoder = task.__dict__["_encoder"]
    named = [*encoder.named_parameters(prefix="encoder"), *enumerate(task.own_parameters())]
    return [(str(name), value) for name, value in named if value.grad is not None]


def loss_with_padding(ranks: Ranks, reduction: str) -> dict[str, Pair]:
    """Computes a masked contrastive loss where one rank has more padding than the other."""
    from mcurl_torchrl import ContextTransformer, MaskedContrastiveLoss, PixelEncoder

    in_double_precision()

    def make(ranks: Ranks) -> MaskedContrastiveLoss:
        torch.manual_seed(2)
        encoder = PixelEncoder(1, 16, num_layers=2, num_filters=2, feature_dim=6)
        return MaskedContrastiveLoss(encoder, ContextTransformer(6, dropout=0.0), reduction=reduction, ranks=ranks)

    torch.manual_seed(3)
    pixels, masked = torch.randint(256, (4, 5, 1, 16, 16), dtype=torch.uint8), torch.rand(4, 5) < 0.5
    views = {"query_pixels": pixels * ~masked[..., None, None, None], "key_pixels": pixels, "masked": masked}
    valid = torch.arange(5) < torch.tensor([[5], [4], [2], [3]])
    batch = TensorDict({"mcurl": views, "collector": {"mask": valid}}, [4, 5])
    whole, ours = make(ALONE), make(ranks)
    expected, found = whole(batch), ours(batch[ranks.share_of("slices", 4)])
    expected["loss_contrastive"].backward()
    found["loss_contrastive"].backward()
    ranks.average_gradients(ours.parameters())
    pairs = {key: (value, expected[key].detach()) for key, value in ranks.average(dict(found.items())).items()}
    gradients = zip(ours.parameters(), whole.parameters(), strict=True)
    return pairs | {f"gradient {n}": (a.grad, b.grad) for n, (a, b) in enumerate(gradients) if b.grad is not None}


# -- agents ------------------------------------------------------------------------------------------------------------


def make_learner(recipe: str, algo: str, ranks: Ranks, *more: str) -> tuple[Any, FrameReplayBuffer]:
    """Makes a recipe's agent and its replay, which holds an episode of random frames."""
    from recipes import rainbow_mcurl, sac_mcurl
    from tests.recipes import running
    from tests.recipes.test_objective_updates import SIZES, fill

    module, discrete = {"sac_mcurl": (sac_mcurl, False), "rainbow_mcurl": (rainbow_mcurl, True)}[recipe]
    torch.manual_seed(4)
    cfg = running.settings(f"algo={algo}", "preset=smoke", *SIZES[recipe], *more, recipe=recipe)
    size, channels = cfg.env.image_size, 1 if discrete else 3
    spaces = SimpleNamespace(
        observation_spec={"pixels": torch.empty(channels * cfg.env.num_frames, size, size, device="meta")},
        action_spec=Categorical(6) if discrete else Bounded(-1, 1, shape=(2,)),
    )
    buffer = module.make_replay(cfg, Path("unused"), ranks)
    agent = module.make_agent(cfg, spaces, buffer, torch.device("cpu"))
    agent.ranks = ranks  # also of a process alone that draws what ranks have in common
    fill(buffer, channels, size, torch.randint(6, (40,)) if discrete else torch.rand(40, 2))
    return agent, buffer


def updates_of_agents(ranks: Ranks, recipe: str, algo: str, *more: str) -> dict[str, Pair]:
    """Takes updates with a reset among them; returns metrics, networks and priorities, ours and of the whole batch."""
    in_double_precision()
    drawn = share_noise(ranks)
    whole, whole_buffer = make_learner(recipe, algo, Whole(), *more)
    ours, buffer = make_learner(recipe, algo, ranks, *more)
    whole.resets, ours.resets = Resets(4), Resets(4)
    pairs: dict[str, Pair] = {}
    for number in range(5):
        torch.manual_seed(number)
        batch = whole_buffer.sample()
        views = whole.task.sample(batch)
        share = ranks.share_of("batch_size", len(batch))
        own = batch[share].clone()
        own_views = own if views is batch else views[ranks.share_of("views", len(views))].clone()
        for agent in (whole, ours):
            agent.begin_step(agent.first_update_step + number)
        drawn.update(call=0, whole=True)
        expected = whole.update(batch, views, measure=True)
        drawn.update(call=0, whole=False)
        found = ours.update(own, own_views, measure=True)
        for one, learned in ((whole_buffer, batch), (buffer, own)):
            one.update_tensordict_priority(learned)
        pairs |= {f"{key} {number}": (value, expected[key]) for key, value in found.items()}
    states = [{**agent.policy.state_dict(), **agent.task.state_dict()} for agent in (ours, whole)]
    pairs |= {key: (value, states[1][key]) for key, value in states[0].items() if isinstance(value, Tensor)}
    if isinstance(buffer.sampler, PrioritizedTransitionSampler):
        pairs["priorities"] = buffer.sampler.tree.weights, whole_buffer.sampler.tree.weights
    return pairs


def share_noise(ranks: Ranks) -> dict[str, Any]:
    """Gives each rank its part of the noise of actions that one process draws for the whole batch."""
    from torch.distributions import normal

    drawn: dict[str, Any] = {"call": 0, "whole": True}

    def standard_normal(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        drawn["call"] += 1
        generator = torch.Generator().manual_seed(drawn["call"])
        if drawn["whole"]:
            return torch.randn(shape, dtype=dtype, generator=generator)
        whole = torch.randn(shape[0] * ranks.count, *shape[1:], dtype=dtype, generator=generator)
        return whole[ranks.share_of("noise", len(whole))]

    normal._standard_normal = standard_normal
    return drawn


# -- replay ------------------------------------------------------------------------------------------------------------


def shares_of_batches(ranks: Ranks) -> list[tuple[TensorDictBase, TensorDictBase]]:
    """Draws transitions and slices in turn; returns those of each rank beside those of one process."""

    def make(ranks: Ranks, **options: Any) -> tuple[Any, Any]:
        torch.manual_seed(6)
        sampler = PrioritizedTransitionSampler()
        buffer = FrameReplayBuffer(
            storage=LazyTensorStorage(60), stacked_input=False, batch_size=8, sampler=sampler, ranks=ranks, **options
        )
        frames, last = torch.randint(256, (41, 1, 4, 4), dtype=torch.uint8), torch.arange(40)[:, None] == 39
        outcome = {"pixels": frames[1:], "reward": torch.rand(40, 1), "truncated": last, "terminated": last & False}
        buffer.extend(TensorDict({"pixels": frames[:-1], "action": torch.rand(40, 2), "next": outcome}, [40]))
        return buffer, buffer.slices(num_slices=4, slice_len=3, priority="mean")

    ours, whole = make(ranks), make(ALONE, generator=Whole().generator)
    torch.manual_seed(ranks.index)  # what a rank draws for itself has no part in it
    found = []
    for number in range(6):
        one, other = ours[number % 2].sample(), whole[number % 2].sample()
        found.append((one, other[ranks.share_of("rows", len(other))]))
        if number % 2 == 0:
            one["td_error"], other["td_error"] = one["step"] / 7 + number, other["step"] / 7 + number
            ours[0].update_tensordict_priority(one)
            whole[0].update_tensordict_priority(other)
    assert internals.generator_of(ours[0]) is None  # the global one is a rank's own
    return found


# -- faults ------------------------------------------------------------------------------------------------------------


def lose_the_other(ranks: Ranks, how: str) -> str:
    """Waits for a rank that is killed, or that sleeps; returns what is raised."""
    import os
    import signal
    import time

    ranks.meet()
    if not ranks.leads and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if not ranks.leads and how == "asleep":
        time.sleep(8)
        os._exit(3)
    try:
        ranks.average_gradients([SimpleNamespace(grad=torch.ones(3))])
    except RankLost as lost:
        return str(lost)
    return "nothing was raised"


class Odd(Exception):
    """An error that no other process can read."""

    def __init__(self, number: int, *, hook: Any = None) -> None:
        super().__init__(f"odd: {number}")
        self.hook = lambda: number


def work_on_first(ranks: Ranks) -> list[Any]:
    """Lets the first rank return, raise, and raise what cannot be sent."""

    def fail(error: Exception) -> Any:
        def work(sign_of_life: Any) -> None:
            sign_of_life()
            raise error

        try:
            ranks.on_first(work)
        except Exception as raised:
            return type(raised).__name__, str(raised)

    def count(sign_of_life: Any) -> int:
        for _ in range(3):
            sign_of_life()
        return 100 + ranks.index

    return [ranks.on_first(count), fail(KeyError("gone")), fail(Odd(7)), ranks.highest(ranks.index)]


def draw(ranks: Ranks) -> list[float]:
    """Returns numbers drawn apart, together, and apart again."""
    torch.manual_seed(ranks.index)
    first = torch.rand(()).item()
    with ranks.same_draws():
        together = torch.rand(()).item()
    with ranks.same_draws():
        again = torch.rand(()).item()
    return [first, together, again, torch.rand(()).item()]


# -- runs --------------------------------------------------------------------------------------------------------------


def train_run(
    ranks: Ranks, recipe: str, folder: Path, overrides: list[str], faults: dict[int, Any]
) -> int | str | None:
    """Trains with the other ranks, with a fault on some of them; returns how the program would end."""
    from mcurl_torchrl.training import RunDirectory
    from recipes import launch
    from tests.recipes import dying_run, running

    fault = faults.get(ranks.index)
    if isinstance(fault, tuple):
        dying_run.arm(*fault)
    elif fault is not None:
        fault()
    try:
        if ranks.leads:
            cfg = running.settings(*overrides, recipe=recipe)
            launch.run_job(running.TRAIN[recipe], cfg, RunDirectory(folder), overrides, ranks)
        else:
            launch.follow(running.TRAIN[recipe], ranks)
    except SystemExit as ended:
        return ended.code
    except launch.BadCommand as error:
        return str(error)
    return 0


def drift() -> None:
    """Moves a weight of this rank's agent in its fifth update."""
    from mcurl_torchrl.agents import RainbowAgent

    update, calls = RainbowAgent.update, iter(range(1000))

    def moved(agent: RainbowAgent, *args: Any, **options: Any) -> Any:
        found = update(agent, *args, **options)
        if next(calls) == 4:
            with torch.no_grad():
                agent.policy.network.encoder.convs[0].bias[0] += 1e-7
        return found

    RainbowAgent.update = moved


def store_other_pictures() -> None:
    """Lets this rank's replay store other pictures than the first rank's."""
    from mcurl_torchrl import FrameReplayBuffer

    add = FrameReplayBuffer.add

    def changed(buffer: FrameReplayBuffer, step: TensorDictBase) -> Any:
        return add(
            buffer, step.clone().update({"pixels": step["pixels"] ^ 1, "next": {"pixels": step["next", "pixels"] ^ 1}})
        )

    FrameReplayBuffer.add = changed


def break_environment() -> None:
    """Lets the environment to train in fail at its 25th step."""
    from tests.recipes.faulty_envs import Faulty

    def fault(env: Faulty, reward: float) -> float:
        if env.trains and env.taken == 25:
            raise ValueError("the joint is loose")
        return reward

    Faulty.fault = fault
