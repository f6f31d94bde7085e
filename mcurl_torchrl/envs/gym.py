"""Any Gymnasium or TorchRL environment with image observations, as a pixel environment."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.utils import NestedKey
from torch import Tensor
from torchrl.data import Bounded, Composite, TensorSpec
from torchrl.envs import ActionScaling, Compose, DoubleToFloat, EnvBase, GymWrapper, Transform, TransformedEnv

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.envs.images import ToFrames, check_image, choose_image, is_image
from mcurl_torchrl.stacking import FrameStack

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
    env_kwargs: Mapping[str, Any] | None = None,
    film: bool = False,
    seed: int = 0,
) -> EnvBase:
    """Builds a pixel environment from any Gymnasium or TorchRL environment that shows an image.

    Images are uint8, or float in [0, 1], of the layout [H, W], [H, W, C] or [C, H, W] with C one of 1, 3 and 4, and H
    and W at least 12: smaller arrays are boards or grids of symbols. If an image has another dtype or range than the
    environment declares, the step that returns it raises an error. Each action is repeated inside the given
    environment: one picture is drawn per agent step. After ``env.set_seed(s)``, the next ``env.reset()`` of a Gymnasium
    environment is ``reset(seed=s)``; a TorchRL environment keeps its own way of seeding.

    Writes "pixels" uint8 [C * num_frames, H, W], the last ``num_frames`` frames, oldest first (at a reset all are the
    first frame); "reward" float32 [1], the sum over the repeats; "done", "terminated" and "truncated" bool [1], as the
    environment says. Reads "action": bounded continuous actions are float32 in [-1, 1] and stretched to their bounds;
    discrete actions of a Gymnasium environment are one-hot (or numbers: ``categorical_actions``), discrete actions of a
    TorchRL environment stay as they are. Other observations of a Gymnasium environment are left out, other observations
    of a TorchRL environment are kept.

    Args:
        env (str, gymnasium.Env or EnvBase): The environment, or its Gymnasium id ("CarRacing-v3", "module:Env-v0").
        num_frames (int): Frames per observation. Defaults to 3.
        action_repeat (int): Simulator steps per agent step. Defaults to 1.
        image_size (int, optional): Height and width to which images are resized (bilinear, antialiased). Defaults to
            the environment's own.
        pixels_key (NestedKey, optional): Which of several observations is the image. Defaults to the only image. A
            TorchRL environment declares no bounds of float images, so that the key must be given for them.
        render (bool): Whether the image is the picture that ``env.render()`` of a Gymnasium environment draws
            ("rgb_array"), not its observation. Defaults to False.
        categorical_actions (bool): Whether discrete actions of a Gymnasium environment are numbers, int64 [], as
            :class:`~mcurl_torchrl.CategoricalDQNLoss` takes them, instead of one-hot. Defaults to False.
        env_kwargs (mapping, optional): Keyword arguments of ``gymnasium.make``, for an id. Defaults to none.
        film (bool): Whether to make the environment of an id with ``render_mode="rgb_array"``, if it has this mode, so
            that ``env.rendered_screen()`` draws it for videos. Defaults to False.
        seed (int): The seed of the first episodes. Defaults to 0.

    Raises:
        ImportError: if an id is given and Gymnasium is not installed.
        TypeError: if ``env`` is of another type, or if a count is not a whole number.
        ValueError: if there is no such id, no such image, no picture to draw, if actions are of several parts (a Dict),
            or if a count is below 1.

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
        if env_kwargs:
            raise ValueError(f"env_kwargs={dict(env_kwargs)} are for gymnasium.make; this environment is made already")
        if len(env.action_keys) != 1:
            raise ValueError(f"the environment takes the actions {env.action_keys}; exactly one is needed")
        _check_bounds(env.action_spec)
        base, image_key = env, _image_key(env, pixels_key)
        if action_repeat > 1 and env.batch_size:
            raise ValueError(
                f"action_repeat={action_repeat} with a batch of environments {env.batch_size}: their episodes end at "
                "different steps; repeat actions in each environment instead"
            )
        repeat = [_RepeatAction(action_repeat)] if action_repeat > 1 else []
    else:
        base, image_key, repeat = (
            _wrap_gymnasium(env, action_repeat, pixels_key, render, categorical_actions, env_kwargs or {}, film),
            "pixels",
            [],
        )
    image_spec = base.observation_spec[image_key]
    dtype = str(image_spec.dtype).removeprefix("torch.")
    to_frames = ToFrames(image_key, image_spec.shape[base.batch_dims :], image_size, dtype)
    stack = _StackNewest(num_frames, base.batch_size)
    transform = Compose(*repeat, *_float_transforms(base), to_frames, stack)
    # TorchRL would unwrap a given TransformedEnv, and its action transforms would then act once more at each repeat.
    pixel_env = _PixelEnv(base, transform, auto_unwrap=False)
    pixel_env.raw_interface = {
        "image_shape": list(image_spec.shape[base.batch_dims :]),
        **(_described_bounds(base.action_spec) if _is_scaled(base.action_spec) else {}),
    }
    pixel_env.set_seed(seed)
    return pixel_env


class _PixelEnv(TransformedEnv):
    """Draws random actions from its own action spec; TorchRL refuses that around another TransformedEnv.

    ``raw_interface`` describes the environment's own images and actions, for policies that act in it without this
    package: the shape of its images, and the bounds of its actions if these are stretched.
    """

    raw_interface: dict[str, Any]

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        return EnvBase.rand_action(self, tensordict)


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
            # Some environments read their state from the step, and not from themselves.
            state = next_tensordict.select(*self.parent.state_spec.keys(True, True), strict=False)
            tensordict = tensordict.copy().update(state)
            next_tensordict = self.parent._step(tensordict)
            reward = reward + next_tensordict.get("reward")
        return next_tensordict.set("reward", reward)


class _StackNewest(Transform):
    """Stacks the newest frames of each environment of a batch under "pixels"."""

    def __init__(self, num_frames: int, batch_size: torch.Size) -> None:
        super().__init__(in_keys=["pixels"], out_keys=["pixels"])
        self._stack = FrameStack(num_frames, padding="repeat", batch_size=batch_size)

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict.set("pixels", self._stack.push(next_tensordict.get("pixels")))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        begins: Tensor | None = None if tensordict is None else tensordict.get("_reset", None)
        return tensordict_reset.set("pixels", self._stack.begin(tensordict_reset.get("pixels"), begins))

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Gives the shape of the stacks."""
        spec = observation_spec["pixels"]
        *lead, channels, height, width = spec.shape
        shape = (*lead, self._stack.num_frames * channels, height, width)
        observation_spec["pixels"] = Bounded(0, 255, shape, dtype=spec.dtype, device=spec.device)
        return observation_spec


# -- Gymnasium, which is imported only when it is needed ---------------------------------------------------------------


def _wrap_gymnasium(
    env: str | gymnasium.Env,
    action_repeat: int,
    pixels_key: NestedKey | None,
    render: bool,
    categorical_actions: bool,
    env_kwargs: Mapping[str, Any],
    film: bool,
) -> EnvBase:
    if importlib.util.find_spec("gymnasium") is None:
        raise ImportError("make_pixel_env needs Gymnasium for this: pip install gymnasium")
    import gymnasium

    if isinstance(env, str):
        env = _make_registered(env, render, env_kwargs, film)
    elif env_kwargs:
        raise ValueError(f"env_kwargs={dict(env_kwargs)} are for gymnasium.make; this environment is made already")
    if not isinstance(env, gymnasium.Env):
        raise TypeError(
            f"env is a {type(env).__name__}; it must be a Gymnasium id, a gymnasium.Env or a TorchRL EnvBase"
        )
    if isinstance(env.action_space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)):
        raise ValueError(
            f"the environment takes actions of several parts, {env.action_space}; one Box or Discrete space is needed: "
            "put them into one Box with a gymnasium.ActionWrapper"
        )
    if np.any(getattr(env.action_space, "start", 0)):
        raise ValueError(f"the actions of the environment are {env.action_space}; TorchRL counts them from 0")
    return _GymnasiumEnv(
        _OneImage(env, action_repeat, pixels_key, render), categorical_action_encoding=categorical_actions
    )


def _make_registered(name: str, render: bool, env_kwargs: Mapping[str, Any], film: bool) -> gymnasium.Env:
    import gymnasium

    drawn = {"render_mode": "rgb_array"}
    try:
        env = gymnasium.make(name, **(drawn if render else {}) | dict(env_kwargs))
        # Its modes are known once it is made. Not every environment that has the mode takes the keyword.
        if film and env.render_mode is None and "rgb_array" in env.metadata.get("render_modes", ()):
            with contextlib.suppress(TypeError):
                env, silent = gymnasium.make(name, **drawn | dict(env_kwargs)), env
                silent.close()
        return env
    except TypeError as error:
        if not env_kwargs:
            raise
        raise ValueError(f"env_kwargs={dict(env_kwargs)} do not fit env={name!r}: {error}") from error
    except gymnasium.error.UnregisteredEnv as error:
        close = difflib.get_close_matches(name, gymnasium.registry)
        hint = f"did you mean one of {close}?" if close else "gymnasium.registry lists all ids"
        raise ValueError(f"env={name!r} is not registered with Gymnasium; {hint}") from error


class _GymnasiumEnv(GymWrapper):
    """TorchRL's wrapper with another way of seeding."""

    def _set_seed(self, seed: int | None) -> None:
        # TorchRL's method resets at once, so that the next reset gives the seed's second episode.
        self._env.next_seed = seed


class _OneImage:
    """A Gymnasium environment that shows one image under the key "pixels" and takes each action several times.

    Rewards are summed; the repeats stop at the episode's end, and one picture is drawn per agent step.

    Args:
        env (gymnasium.Env): The environment; attributes other than those below are looked up there.
        action_repeat (int): How often each action is taken.
        pixels_key (NestedKey, optional): Which part of a Dict observation is the image. Defaults to the only image.
        render (bool): Whether the image is the picture that ``env.render()`` draws, not the observation.
    """

    def __init__(self, env: gymnasium.Env, action_repeat: int, pixels_key: NestedKey | None, render: bool) -> None:
        from gymnasium import spaces

        self.env = env
        self.action_space = _with_finite_bounds(env.action_space)
        self.next_seed: int | None = None
        self._action_repeat = action_repeat
        self._pixels_key: Any = None
        self._draws = render
        self._picture: Any = None  # the last one that was drawn for an observation
        image = env.observation_space
        if render:
            image = self._drawn_space()
        elif isinstance(image, spaces.Dict):
            images = [key for key, space in image.items() if _is_image_space(space)]
            self._pixels_key = choose_image(images, pixels_key, image)
            image = image[self._pixels_key]
        else:
            # One image without a name: a pixels_key matches no image.
            choose_image([None] if _is_image_space(image) else [], pixels_key, image)
        self.observation_space = spaces.Dict({"pixels": image})
        self._declared = str(image.dtype)
        key = "" if self._pixels_key is None else f" {self._pixels_key!r}"
        self._name = "the picture of render()" if render else f"the observation{key}"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode, with ``next_seed`` if it is set."""
        seed, self.next_seed = self.next_seed if seed is None else seed, None
        observation, info = self.env.reset(seed=seed, options=options)
        return self._image(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Takes ``action`` several times, or until the episode ends."""
        total = 0.0
        for _ in range(self._action_repeat):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return self._image(observation), total, bool(terminated), bool(truncated), info

    def _image(self, observation: Any) -> dict[str, np.ndarray]:
        if self._draws:
            observation = self._picture = self.env.render()
        elif self._pixels_key is not None:
            observation = observation[self._pixels_key]
        image = np.asarray(observation)
        check_image(image, self._declared, self._name)
        return {"pixels": image}

    @property
    def agent_steps_per_second(self) -> float | None:
        """The agent steps per second, from the environment's ``render_fps``; None if it has none."""
        fps = self.env.metadata.get("render_fps")
        return None if fps is None else fps / self._action_repeat

    def rendered_screen(self) -> np.ndarray | None:
        """Returns the picture that ``env.render()`` draws, uint8 [H, W, 3]; None if it draws none."""
        if self.env.render_mode != "rgb_array":
            return None
        picture = np.asarray(self._picture if self._draws else self.env.render())
        return picture if picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[-1] == 3 else None

    def _drawn_space(self) -> Any:
        from gymnasium import spaces

        if self.env.render_mode != "rgb_array":
            raise ValueError(
                f"render=True needs an environment with render_mode='rgb_array', not {self.env.render_mode!r}"
            )
        self.env.reset(seed=0)  # an environment draws nothing before its first reset
        picture = np.asarray(self.env.render())
        space = spaces.Box(0, 255, picture.shape, picture.dtype)
        drawn = f"drawings of shape {picture.shape}, {picture.dtype}"
        choose_image([None] if _is_image_space(space) else [], None, drawn)
        return space

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not set yet, while unpickling: the lookup below would never end
            raise AttributeError(name)
        return getattr(self.env, name)


def _with_finite_bounds(space: Any) -> Any:
    """Returns the actions with bounds of -1 and 1 where they have none: from infinite bounds no action can be drawn."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        return space
    without = np.isinf(space.low) & np.isinf(space.high)
    if (np.isinf(space.low) | np.isinf(space.high))[~without].any():
        raise ValueError(
            f"the actions of the environment are {space}, with one infinite bound in some dimension; both must be "
            "finite, or both infinite: set them with a gymnasium.ActionWrapper"
        )
    low, high = np.where(without, -1, space.low), np.where(without, 1, space.high)
    return spaces.Box(low, high, space.shape, space.dtype) if without.any() else space


def _is_image_space(space: Any) -> bool:
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        return False
    return is_image(space.shape, str(space.dtype), float(space.low.min()), float(space.high.max()))


# -- TorchRL -----------------------------------------------------------------------------------------------------------


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


def _check_bounds(spec: TensorSpec) -> None:
    if isinstance(spec, Bounded) and not (spec.space.low.isfinite() & spec.space.high.isfinite()).all():
        raise ValueError(
            f"the actions of the environment have infinite bounds, low={spec.space.low.tolist()} and "
            f"high={spec.space.high.tolist()}: no random action can be drawn from them; set its action_spec to finite "
            "bounds, or to an Unbounded spec"
        )


def _is_scaled(spec: TensorSpec) -> bool:
    """Returns whether actions have bounds, which are always finite here, other than -1 and 1."""
    if not isinstance(spec, Bounded) or not spec.dtype.is_floating_point:
        return False
    return not ((spec.space.low == -1).all() and (spec.space.high == 1).all())


def _described_bounds(spec: TensorSpec) -> dict[str, Any]:
    dtype = str(spec.dtype).removeprefix("torch.")
    return {"action_low": spec.space.low.tolist(), "action_high": spec.space.high.tolist(), "action_dtype": dtype}


def _float_transforms(env: EnvBase) -> list[Transform]:
    """Returns transforms to float32 rewards and actions, and to action bounds of -1 and 1."""
    spec = env.action_spec
    doubles = [key for key, part in (("reward", env.reward_spec), ("action", spec)) if part.dtype == torch.float64]
    transforms: list[Transform] = [ActionScaling()] if _is_scaled(spec) else []
    if doubles:
        rewards, actions = [k for k in doubles if k == "reward"], [k for k in doubles if k == "action"]
        transforms.append(DoubleToFloat(in_keys=rewards, in_keys_inv=actions))
    return transforms
