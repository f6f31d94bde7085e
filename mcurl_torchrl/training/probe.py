"""A linear probe: how well a ridge regression predicts the simulator's state from an encoder's latents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchrl.envs import EnvBase

from mcurl_torchrl.checks import check_count, check_number
from mcurl_torchrl.envs import simulator_state
from mcurl_torchrl.training.episodes import EpisodeStream
from mcurl_torchrl.transforms import center_crop

__all__ = ["ProbeData", "ProbeScore", "collect_probe_data", "linear_probe", "probe_encoder"]

_CONSTANT = 1e-8  # a state with less variance does not move: there is nothing to predict


@dataclass(frozen=True)
class ProbeData:
    """Observations of random play with the simulator's states: ``[N, C, H, W]``, ``[N, D]`` and episodes ``[N]``."""

    pixels: Tensor
    states: Tensor
    episodes: Tensor


@dataclass(frozen=True)
class ProbeScore:
    """How well states are predicted from latents, on episodes to which the probe was not fitted.

    Attributes:
        r2 (float): the part of the states' variance that is explained, averaged over the dimensions that move: 1 is
            all of it, 0 is no better than their mean, and below 0 is worse.
        error (float): the root mean squared error in units of the states' standard deviations, averaged in the same
            way.
        r2_of (list of float): ``r2`` of each dimension of the state; NaN for a dimension that does not move.
    """

    r2: float
    error: float
    r2_of: list[float]


def collect_probe_data(env: EnvBase, *, episodes: int, steps: int, seed: int) -> ProbeData:
    """Plays episodes with random actions and keeps each observation with the simulator's state.

    Args:
        env (EnvBase): a pixel environment that :func:`~mcurl_torchrl.envs.simulator_state` knows.

    Keyword Args:
        episodes (int): how many episodes.
        steps (int): the most steps of an episode.
        seed (int): of the episodes, and of the random actions.
    """
    check_count("steps", steps)
    stream = EpisodeStream(env, seed=seed)
    pixels, states, numbers = [], [], []
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        for episode in range(check_count("episodes", episodes)):
            stream.begin(episode)
            for _ in range(steps):
                pixels.append(stream.observe().clone())
                states.append(simulator_state(env))
                numbers.append(episode)
                if stream.take(env.action_spec.rand())["next", "done"]:
                    break
    return ProbeData(torch.stack(pixels), torch.stack(states), torch.tensor(numbers))


def linear_probe(
    latents: Tensor, states: Tensor, episodes: Tensor, *, held_out: float = 0.25, ridge: float = 1e-2
) -> ProbeScore:
    """Fits a ridge regression from latents to states on the first episodes, and scores it on the last ones.

    Latents and states are standardized by the first episodes; dimensions of the latents and of the states that are
    constant there are left out. All is computed in double precision and in closed form: equal latents give equal
    scores.

    Args:
        latents (Tensor): ``[N, d]``.
        states (Tensor): ``[N, D]``.
        episodes (Tensor): the number of each row's episode ``[N]``. Neighbors in time are almost equal: a split inside
            an episode would test on rows that are almost equal to fitted rows.

    Keyword Args:
        held_out (float): the part of the episodes to score on, at least one and not all. Defaults to 0.25.
        ridge (float): the weight of the squared coefficients, per row. Defaults to 1e-2.

    Raises:
        ValueError: on shapes that do not fit, with fewer than two episodes, and if no state moves.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.training import linear_probe
        >>> latents = torch.randn(400, 8)
        >>> states = latents[:, :2] @ torch.tensor([[1.0, 2.0], [0.5, -1.0]])
        >>> round(linear_probe(latents, states, torch.arange(400) // 100).r2, 2)
        1.0
    """
    check_number("held_out", held_out, above=0, most=0.9)
    check_number("ridge", ridge, above=0)
    if latents.ndim != 2 or states.ndim != 2 or not len(latents) == len(states) == len(episodes):
        shapes = [list(part.shape) for part in (latents, states, episodes)]
        raise ValueError(f"latents, states and episodes must be [N, d], [N, D] and [N]; got {shapes}")
    numbers = episodes.unique()
    if len(numbers) < 2:
        raise ValueError("episodes has one number; a probe needs at least two episodes, one of them to score on")
    count = min(len(numbers) - 1, max(1, round(held_out * len(numbers))))
    tested = torch.isin(episodes, numbers[-count:])
    x, y = latents.detach().cpu().double(), states.detach().cpu().double()
    x, y, moves = _standardized(x, ~tested)[0], *_standardized(y, ~tested)
    if not moves.any():
        raise ValueError("no dimension of the states moves; there is nothing to predict from the latents")
    fitted = x[~tested]
    weights = torch.linalg.solve(
        fitted.T @ fitted + ridge * len(fitted) * torch.eye(x.shape[1], dtype=x.dtype), fitted.T @ y[~tested]
    )
    errors = (y[tested] - x[tested] @ weights).square().mean(0)
    spread = y[tested].var(0, correction=0)
    seen = moves & (spread > _CONSTANT)
    r2 = torch.where(seen, 1 - errors / spread.clamp(min=_CONSTANT), torch.nan)
    relative = (errors / spread.clamp(min=_CONSTANT)).sqrt()[seen]
    return ProbeScore(float(r2[seen].mean()), float(relative.mean()), r2.tolist())


def _standardized(values: Tensor, fitted: Tensor) -> tuple[Tensor, Tensor]:
    """Returns columns with mean 0 and deviation 1 over the fitted rows (constant ones: 0), and which are not so."""
    mean, deviation = values[fitted].mean(0), values[fitted].std(0, correction=0)
    moves = deviation.square() > _CONSTANT
    return (values - mean) / torch.where(moves, deviation, torch.inf), moves


@torch.no_grad()
def probe_encoder(
    encoder: nn.Module, data: ProbeData, *, held_out: float = 0.25, ridge: float = 1e-2, batch_size: int = 256
) -> ProbeScore:
    """Scores an encoder by a :func:`linear_probe` on its latents; larger images are cropped at their center.

    Args:
        encoder (nn.Module): pixels to latents, like :class:`~mcurl_torchrl.PixelEncoder`.
        data (ProbeData): from :func:`collect_probe_data`.

    Keyword Args:
        held_out (float): as in :func:`linear_probe`. Defaults to 0.25.
        ridge (float): as in :func:`linear_probe`. Defaults to 1e-2.
        batch_size (int): observations to encode at a time. Defaults to 256.
    """
    device = next(encoder.parameters()).device
    size = int(encoder.image_size)  # type: ignore[arg-type]
    was_training = encoder.training
    encoder.eval()
    parts = [encoder(center_crop(part, size).to(device)).cpu() for part in data.pixels.split(batch_size)]
    encoder.train(was_training)
    return linear_probe(torch.cat(parts), data.states, data.episodes, held_out=held_out, ridge=ridge)
