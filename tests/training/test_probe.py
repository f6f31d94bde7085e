"""The linear probe: against scikit-like closed forms, on held-out episodes, and on a simulator's own state."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from mcurl_torchrl import AtariEncoder, make_pixel_env
from mcurl_torchrl.envs import simulator_state
from mcurl_torchrl.training import ProbeData, collect_probe_data, linear_probe, probe_encoder
from tests.recipes.tiny_envs import Dot

EPISODES = torch.arange(200) // 25


class Seen(Dot):
    """A dot whose place is the state that it shows."""

    @property
    def state(self) -> np.ndarray:
        return self.place


def test_a_ridge_regression_by_hand():
    """One latent, one state: the slope is sum(xy) / (sum(xx) + ridge n), on standardised columns."""
    x, noise = torch.randn(200, 1, dtype=torch.float64), torch.randn(200, 1, dtype=torch.float64)
    y = 3 * x + noise + 5
    fitted, tested = EPISODES < 6, EPISODES >= 6  # a quarter of eight episodes
    score = linear_probe(x, y, EPISODES, ridge=0.5)
    scale = [(v - v[fitted].mean()) / v[fitted].std(correction=0) for v in (x, y)]
    slope = (scale[0][fitted] * scale[1][fitted]).sum() / ((scale[0][fitted] ** 2).sum() + 0.5 * int(fitted.sum()))
    errors = ((scale[1] - slope * scale[0])[tested] ** 2).mean()
    spread = scale[1][tested].var(correction=0)
    assert score.r2 == pytest.approx(float(1 - errors / spread), abs=1e-12)
    assert score.error == pytest.approx(float((errors / spread).sqrt()), abs=1e-12)


def test_what_can_be_read_and_what_cannot():
    torch.manual_seed(1)
    latents, noise = torch.randn(2000, 6), torch.randn(2000, 1)
    states = torch.cat([latents[:, :1] - 2 * latents[:, 3:4], noise, torch.full((2000, 1), 7.0)], 1)
    score = linear_probe(latents, states, torch.arange(2000) // 100)
    readable, unreadable, constant = score.r2_of
    assert readable > 0.999 and abs(unreadable) < 0.05 and np.isnan(constant)
    assert score.r2 == pytest.approx((readable + unreadable) / 2)


def test_the_score_is_of_episodes_that_were_not_seen():
    """An encoder whose latent depends only on the episode, not on the state: it must get a bad score."""
    which = torch.nn.functional.one_hot(EPISODES).float()
    states = torch.randn(8, 1)[EPISODES] + 0.1 * torch.randn(200, 1)
    assert linear_probe(which, states, EPISODES).r2 < 0


def test_an_episode_is_always_left_to_fit_to():
    latents, episodes = torch.randn(300, 2), torch.arange(300) // 100
    assert linear_probe(latents, latents, episodes, held_out=0.9).r2 > 0.99


def test_latents_that_are_constant_or_doubled_do_no_harm():
    latents = torch.randn(200, 3)
    states = latents[:, :1]
    doubled = torch.cat([latents, latents, torch.ones(200, 2)], 1)
    assert linear_probe(doubled, states, EPISODES).r2 == pytest.approx(
        linear_probe(latents, states, EPISODES).r2, abs=1e-3
    )


@pytest.mark.parametrize(
    ("latents", "states", "episodes", "answer"),
    [
        (torch.zeros(4, 2), torch.zeros(3, 2), torch.arange(4), r"got \[\[4, 2\], \[3, 2\], \[4\]\]"),
        (torch.rand(4, 2), torch.rand(4, 2), torch.zeros(4), "at least two episodes"),
        (torch.rand(4, 2), torch.ones(4, 2), torch.arange(4), "no dimension of the states moves"),
    ],
)
def test_what_is_refused(latents, states, episodes, answer):
    with pytest.raises(ValueError, match=answer):
        linear_probe(latents, states, episodes)


def test_collected_states_belong_to_their_observations():
    env = make_pixel_env(Seen(), num_frames=2)
    before = torch.get_rng_state()
    data = collect_probe_data(env, episodes=3, steps=8, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert data.pixels.shape == (24, 6, 40, 40) and data.states.shape == (24, 2)
    assert data.episodes.tolist() == [number for number in range(3) for _ in range(8)]
    for pixels, state in zip(data.pixels, data.states, strict=True):
        rows, columns = (pixels[-1] > 0).nonzero(as_tuple=True)  # the newest frame shows the dot at its place
        assert (rows.min(), columns.min()) == tuple((state * 36).long().tolist())
    again = collect_probe_data(env, episodes=3, steps=8, seed=4)
    assert torch.equal(again.pixels, data.pixels) and torch.equal(again.states, data.states)


def test_an_encoder_is_scored_on_the_centre_of_larger_images():
    torch.manual_seed(2)
    bright = torch.rand(80, 1)
    pixels = torch.zeros(80, 1, 40, 40)
    pixels[:, :, 5:35, 5:35] = 255 * bright[..., None, None]
    pixels[:, :, :5] = 255 * torch.rand(80, 1, 5, 40)  # beyond the centre
    data = ProbeData(pixels.byte(), bright.double(), torch.arange(80) // 10)
    encoder = AtariEncoder(1, 30).train()
    assert probe_encoder(encoder, data).r2 > 0.99 and encoder.training
    assert probe_encoder(encoder, data, batch_size=7).r2 == pytest.approx(probe_encoder(encoder, data).r2, abs=1e-4)


def test_states_of_gymnasium_and_atari():
    env = make_pixel_env(Seen())
    env.reset()
    inner = env
    while hasattr(inner, "base_env"):
        inner = inner.base_env
    assert simulator_state(env).tolist() == inner._env.unwrapped.place.tolist()
    blind = make_pixel_env(gymnasium.wrappers.TimeLimit(Dot(), 5))
    blind.reset()
    with pytest.raises(ValueError, match="shows no state of its simulator"):
        simulator_state(blind)
