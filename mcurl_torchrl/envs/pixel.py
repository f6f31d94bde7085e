"""Any Gymnasium or TorchRL environment with image observations."""

from __future__ import annotations

import difflib
import importlib.util
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torchrl.data import Bounded, TensorSpec
from torchrl.envs import (
    ActionScaling,
    CatFrames,
    Compose,
    DoubleToFloat,
    EnvBase,
    GymWrapper,
    Transform,
    TransformedEnv,
)

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.envs.images import ToFrames, choose_image, is_image

if TYPE_CHECKING:
    import gymnasium

__all__ = ["make_pixel_env"]


def make_pixel_env(
    env: str | gymnasium.Env | EnvBase,
    *,
    num_frames: int = 3,
    action_repeat: int = 1,
    image_size: int | None = None,
    pixels_key: NestedKey | None = None,
    render: bool = False,
    categorical_actions: bool = False,
    seed: int = 0,
) -> EnvBase:
    """Builds a pixel environment out of any Gymnasium or TorchRL environment that shows an image.

    Images are uint8, or float in [0, 1], of the layout [H, W], [H, W, C] or [C, H, W] with C one of 1, 3 and 4. Each
    action is repeated below everything else: one picture is drawn per agent step. After ``env.set_seed(s)``, the next
    ``env.reset()`` of a Gymnasium environment is ``reset(seed=s)``; a TorchRL environment keeps its own way of seeding.

    Writes "pixels" uint8 [C * num_frames, H, W], the last ``num_frames`` frames, oldest first (at a reset all are the
    first frame); "reward" float32 [1], the sum over the repeats; "done", "terminated" and "truncated" bool [1], as the
    environment says. Reads "action": bounded continuous actions are float32 in [-1, 1] and stretched to their bounds;
    discrete actions of a Gymnasium environment are one-hot (or numbers: ``categorical_actions``), those of a TorchRL
    environment stay as they are. Other observations of a Gymnasium environment are left out, those of a TorchRL
    environment are kept.

    Args:
        env (str, gymnasium.Env or EnvBase): The environment, or its Gymnasium id ("CarRacing-v3", "module:Env-v0").
        num_frames (int): Frames per observation. Defaults to 3.
        action_repeat (int): Simulator steps per agent step. Defaults to 1.
        image_size (int, optional): Height and width to which images are resized (bilinear, antialiased). Defaults to
            the environment's own.
        pixels_key (NestedKey, optional): Which of several observations is the image. Defaults to the only image. Float
            images of TorchRL environments, which declare no bounds, have to be named.
        render (bool): Whether the image is what the Gymnasium environment draws ("rgb_array") instead of what it
            shows. Defaults to False.
        categorical_actions (bool): Whether discrete actions of a Gymnasium environment are numbers, int64 [], as
            :class:`~mcurl_torchrl.CategoricalDQNLoss` takes them, instead of one-hot. Defaults to False.
        seed (int): The seed of the first episodes. Defaults to 0.

    Raises:
        ImportError: if an id is given and Gymnasium is not installed.
        TypeError: if ``env`` is something else, or if a count is not a whole number.
        ValueError: if there is no such id, no such image, nothing to draw, or if a count is below 1.

    Examples:
        >>> import gymnasium
        >>> from mcurl_torchrl.envs import make_pixel_env
        >>> class Noise(gymnasium.Env):
        ...     observation_space = gymnasium.spaces.Box(0, 255, (96, 96, 3), "uint8")
        ...     action_space = gymnasium.spaces.Box(-2, 2, (1,), "float32")
        ...
        ...     def reset(self, *, seed=None, options=None):
        ...         super().reset(seed=seed)
        ...         return self.np_random.integers(256, size=(96, 96, 3), dtype="uint8"), {}
        ...
        ...     def step(self, action):
        ...         return self.reset()[0], 1.0, False, False, {}
        >>> env = make_pixel_env(Noise(), action_repeat=4, image_size=84)
        >>> steps = env.rollout(5)
        >>> steps["pixels"].shape, steps["next", "reward"].mean()
        (torch.Size([5, 9, 84, 84]), tensor(4.))
    """
    check_count("num_frames", num_frames)
    check_count("action_repeat", action_repeat)
    if image_size is not None:
        check_count("image_size", image_size)
    if isinstance(env, EnvBase):
        if render:
            raise ValueError("render=True is for Gymnasium environments; a TorchRL environment shows its own images")
        base, image_key = env, _image_key(env, pixels_key)
        if action_repeat > 1 and env.batch_size:
            raise ValueError(f"action_repeat={action_repeat} with a batch {env.batch_size}, whose episodes end apart")
        repeat = [_RepeatAction(action_repeat)] if action_repeat > 1 else []
    else:
        base, image_key, repeat = (
            _wrap_gymnasium(env, action_repeat, pixels_key, render, categorical_actions),
            "pixels",
            [],
        )
    image_shape = base.observation_spec[image_key].shape[base.batch_dims :]
    to_frames = ToFrames(image_key, image_shape, image_size)
    stack = CatFrames(num_frames, dim=-3, in_keys=["pixels"])
    transform = Compose(*repeat, *_float_transforms(base), to_frames, stack)
    # Unwrapped, a given TransformedEnv would apply its own action transforms once more at each repeat.
    pixel_env = _PixelEnv(base, transform, auto_unwrap=False)
    pixel_env.set_seed(seed)
    return pixel_env


class _PixelEnv(TransformedEnv):
    """Draws random actions from its own action spec, which TorchRL refuses around another TransformedEnv."""

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        return EnvBase.rand_action(self, tensordict)


class _GymnasiumEnv(GymWrapper):
    """TorchRL's wrapper, except for the way of seeding."""

    def _set_seed(self, seed: int | None) -> None:
        # TorchRL's resets at once, so that the next reset gives the seed's second episode.
        self._env.next_seed = seed


class _RepeatAction(Transform):
    """Takes each action several times and sums the rewards; unlike FrameSkipTransform it stops at the episode's end."""

    def __init__(self, action_repeat: int) -> None:
        super().__init__()
        self._action_repeat = action_repeat

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        reward = next_tensordict.get("reward")
        for _ in range(self._action_repeat - 1):
            if next_tensordict.get("done").any():
                break
            next_tensordict = self.parent._step(tensordict)
            reward = reward + next_tensordict.get("reward")
        return next_tensordict.set("reward", reward)


def _wrap_gymnasium(
    env: str | gymnasium.Env, action_repeat: int, pixels_key: NestedKey | None, render: bool, categorical_actions: bool
) -> EnvBase:
    if importlib.util.find_spec("gymnasium") is None:
        raise ImportError("make_pixel_env needs Gymnasium for this: pip install gymnasium")
    import gymnasium

    from mcurl_torchrl.envs.gym_simulator import OneImage

    if isinstance(env, str):
        env = _make_registered(env, render)
    if not isinstance(env, gymnasium.Env):
        raise TypeError(
            f"env is a {type(env).__name__}; it must be a Gymnasium id, a gymnasium.Env or a TorchRL EnvBase"
        )
    return _GymnasiumEnv(
        OneImage(env, action_repeat, pixels_key, render), categorical_action_encoding=categorical_actions
    )


def _make_registered(name: str, render: bool) -> gymnasium.Env:
    import gymnasium

    try:
        return gymnasium.make(name, render_mode="rgb_array") if render else gymnasium.make(name)
    except gymnasium.error.UnregisteredEnv as error:
        close = difflib.get_close_matches(name, gymnasium.registry)
        hint = f"did you mean one of {close}?" if close else "gymnasium.registry lists all that are"
        raise ValueError(f"env={name!r} is not registered with Gymnasium; {hint}") from error


def _image_key(env: EnvBase, pixels_key: NestedKey | None) -> NestedKey:
    specs = env.observation_spec.items(True, True)
    images = [key for key, spec in specs if _is_image_spec(spec, env.batch_dims, named=key == pixels_key)]
    return choose_image(images, pixels_key, env.observation_spec)


def _is_image_spec(spec: TensorSpec, batch_dims: int, named: bool) -> bool:
    low, high = -float("inf"), float("inf")
    if named:
        low, high = 0, 1  # TorchRL's own float images (ToTensorImage) declare no bounds
    elif isinstance(spec, Bounded):
        low, high = spec.space.low.min().item(), spec.space.high.max().item()
    return is_image(spec.shape[batch_dims:], str(spec.dtype).removeprefix("torch."), low, high)


def _float_transforms(env: EnvBase) -> list[Transform]:
    """Returns what turns rewards and continuous actions into float32, and the actions' bounds into -1 and 1."""
    spec = env.action_spec
    doubles = [key for key, part in (("reward", env.reward_spec), ("action", spec)) if part.dtype == torch.float64]
    transforms: list[Transform] = []
    if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        low, high = spec.space.low, spec.space.high
        finite = (low.isfinite() & high.isfinite()).all()
        if finite and not ((low == -1).all() and (high == 1).all()):
            transforms.append(ActionScaling())
    if doubles:
        rewards, actions = [k for k in doubles if k == "reward"], [k for k in doubles if k == "action"]
        transforms.append(DoubleToFloat(in_keys=rewards, in_keys_inv=actions))
    return transforms
