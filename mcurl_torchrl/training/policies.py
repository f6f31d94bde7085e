"""The policies of runs: loading them to act on raw frames, and exporting them for programs without this package."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mcurl_torchrl.checks import check_choice, check_count
from mcurl_torchrl.envs.images import layout_of, to_frame
from mcurl_torchrl.modules import Policy
from mcurl_torchrl.stacking import PADDINGS, FrameStack
from mcurl_torchrl.training.checkpoints import CheckpointNotRestored, Checkpoints, SavedCheckpoint
from mcurl_torchrl.training.policy_folders import is_policy_folder, read_policy_folder

__all__ = ["FramePolicy", "describe_policy", "export_policy", "load_policy"]

_RAW_KEYS = ("image_shape", "action_low", "action_high", "action_dtype")


def describe_policy(policy: Policy, *, num_frames: int, padding: str = "repeat", **raw: Any) -> dict[str, Any]:
    """Returns a description in JSON from which :func:`load_policy` builds the policy again.

    Args:
        policy (Policy): stacks to actions.

    Keyword Args:
        num_frames (int): how many frames a stack has.
        padding (str): as in :class:`FramePolicy`. Defaults to ``"repeat"``.
        **raw: ``image_shape``, ``action_low``, ``action_high``, ``action_dtype``, as in :class:`FramePolicy`; the
            environments of this package have them as ``env.raw_interface``.
    """
    return {
        "kind": type(policy).__name__,
        "settings": policy.settings,
        "num_frames": num_frames,
        "padding": check_choice("padding", padding, PADDINGS),
        **raw,
    }


class FramePolicy(nn.Module):
    """A trained policy that takes single raw frames: it resizes, stacks and crops them as in training.

    Call :meth:`reset` at an episode's start; then each frame gives an action. For stacks, such as those from the
    environments of this package, call ``policy.network``.

    Args:
        network (Policy): stacks to actions.

    Keyword Args:
        num_frames (int): how many frames a stack has.
        padding (str): the frames before an episode's first frame in a stack: ``"repeat"``, copies of that frame, or
            ``"zeros"``, as with Atari. Defaults to ``"repeat"``.
        image_shape (sequence of int, optional): the shape of the environment's own images, if these were resized.
            Defaults to None: frames have the size with which the network was trained.
        action_low, action_high (sequence of float, optional): the environment's own bounds, to which actions are
            stretched. Default to None: actions stay in [-1, 1], or numbers.
        action_dtype (str): of stretched actions. Defaults to ``"float32"``.

    Attributes:
        agent_step (int, optional): the agent step of the checkpoint that :func:`load_policy` loaded; None otherwise.

    Raises:
        ValueError: on another ``padding``, on a shape that is not an image's, and on bounds that do not fit together.

    Examples:
        >>> import torch
        >>> from mcurl_torchrl.modules import GaussianPolicy
        >>> from mcurl_torchrl.training import FramePolicy
        >>> policy = FramePolicy(GaussianPolicy([9, 32, 32], 2, hidden_dim=16), num_frames=3)
        >>> policy.reset()
        >>> policy(torch.zeros(32, 32, 3, dtype=torch.uint8)).shape
        torch.Size([2])
        >>> from mcurl_torchrl.modules import RainbowPolicy
        >>> plays = FramePolicy(RainbowPolicy([4, 84, 84], 6), num_frames=4, padding="zeros").eval()
        >>> int(plays(torch.zeros(84, 84, dtype=torch.uint8))) in range(6)
        True
    """

    def __init__(
        self,
        network: Policy,
        *,
        num_frames: int,
        padding: str = "repeat",
        image_shape: Sequence[int] | None = None,
        action_low: Sequence[float] | None = None,
        action_high: Sequence[float] | None = None,
        action_dtype: str = "float32",
    ) -> None:
        super().__init__()
        self.agent_step: int | None = None
        self.network = network
        self.num_frames = num_frames
        self.padding = check_choice("padding", padding, PADDINGS)
        self.image_shape = None if image_shape is None else list(image_shape)
        if image_shape is not None and layout_of(image_shape) is None:
            raise ValueError(f"image_shape={list(image_shape)}; it must be [H, W], [H, W, C] or [C, H, W]")
        self._bounds = _read_bounds(action_low, action_high, action_dtype)
        raw = {"image_shape": image_shape, "action_low": action_low, "action_high": action_high}
        self._raw: dict[str, Any] = {key: list(value) for key, value in raw.items() if value is not None}
        if action_low is not None:
            self._raw["action_dtype"] = action_dtype
        self._stack = FrameStack(num_frames, padding=padding)

    def describe(self, network: Policy) -> dict[str, Any]:
        """Returns :func:`describe_policy` of another network, with the stacks, images and bounds of this policy."""
        return describe_policy(network, num_frames=self.num_frames, padding=self.padding, **self._raw)

    def reset(self) -> None:
        """Clears the frames of the last episode."""
        self._stack.clear()

    @torch.no_grad()
    def forward(self, frame: Tensor | np.ndarray) -> Tensor:
        """Returns the action for the newest frame: ``[A]`` within the bounds, or, of a RainbowPolicy, its index ``[]``.

        Args:
            frame (Tensor or ndarray): an image as the environment shows it, or as the network was trained with it:
                uint8 ``[C, H, W]`` or ``[H, W, C]``, with one channel ``[H, W]`` too; for a policy that was trained on
                states, ``[D]``.

        Raises:
            ValueError: on another shape or dtype.
        """
        newest = self._check(torch.as_tensor(frame))
        # A batch of one: without a batch dimension, the last digits may differ.
        action = self.network(self._stack.push(newest)[None])[0]
        if self._bounds is None:
            return action
        center, half_range = self._bounds
        return action.cpu().to(center.dtype) * half_range + center

    def _check(self, frame: Tensor) -> Tensor:
        channels, *size = self.network.settings["observation_shape"]
        expected = [channels // self.num_frames, *size]
        if self.image_shape is not None and list(frame.shape) == self.image_shape:
            frame = to_frame(frame.cpu(), layout_of(self.image_shape), (size[0], size[1]))
        if size and list(frame.shape) == [*size, expected[0]] and list(frame.shape) != expected:
            frame = frame.permute(2, 0, 1)
        if size and list(frame.shape) == size and expected[0] == 1:
            frame = frame[None]
        dtype = torch.uint8 if size else torch.float32
        if list(frame.shape) != expected or (size and frame.dtype != dtype):
            own = "" if self.image_shape is None else f", or the environment's own {self.image_shape}"
            raise ValueError(f"a frame must be {dtype} {expected}{own}; got {frame.dtype} {list(frame.shape)}")
        return frame.to(next(self.network.parameters()).device, dtype)


def _read_bounds(low: Sequence[float] | None, high: Sequence[float] | None, dtype: str) -> tuple[Tensor, Tensor] | None:
    """Returns the center of an interval and half of its length, for each action."""
    check_choice("action_dtype", dtype, ("float32", "float64"))
    if low is None and high is None:
        return None
    if low is None or high is None or len(low) != len(high):
        raise ValueError(f"action_low={low} and action_high={high} must both have one number for each action")
    lowest, highest = (torch.tensor(bound, dtype=getattr(torch, dtype)) for bound in (low, high))
    return (highest + lowest) / 2, (highest - lowest) / 2


def load_policy(
    run_or_checkpoint: str | Path, *, which: str | int = "latest", device: torch.device | str = "cpu"
) -> FramePolicy:
    """Loads the trained policy of a run: the encoder and the head that acts, without the parts for training only.

    The policy is in evaluation mode: one with noisy layers acts without their noise. No code from the files is run.

    Args:
        run_or_checkpoint (str or Path): a run directory, one of its checkpoints, or a folder from
            :func:`~mcurl_torchrl.training.save_policy`, which holds one policy.

    Keyword Args:
        which (str or int): the checkpoint of a run: ``"latest"`` (the newest that is whole), ``"best"`` (by evaluation;
            the latest if none has a score) or an agent step. Defaults to ``"latest"``.
        device (torch.device or str): the device of the policy. Defaults to the CPU.

    Raises:
        FileNotFoundError: if there is no run or checkpoint.
        ValueError: on another ``which``, and on a checkpoint without a policy that this release knows.
        CheckpointNotRestored: if the files are damaged.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from mcurl_torchrl import load_policy
        >>> from mcurl_torchrl.modules import GaussianPolicy
        >>> from mcurl_torchrl.training import Checkpoints, describe_policy
        >>> trained = GaussianPolicy([9, 40, 40], 2, crop_size=32, hidden_dim=16)  # what a recipe saves of its policy
        >>> info = {"policy": describe_policy(trained, num_frames=3)}
        >>> with tempfile.TemporaryDirectory() as run:
        ...     _ = Checkpoints(f"{run}/checkpoints").save(1000, components={"policy": trained}, info=info)
        ...     policy = load_policy(run)
        >>> policy.reset()
        >>> policy(torch.zeros(40, 40, 3, dtype=torch.uint8)).shape
        torch.Size([2])
    """
    path = Path(run_or_checkpoint)
    if is_policy_folder(path):
        return _load_folder(path).eval().to(device)
    checkpoints = Checkpoints(path / "checkpoints")
    if path.name.startswith("checkpoint-"):
        checkpoints, which = Checkpoints(path.parent), path.name.removeprefix("checkpoint-")
    saved = {found.step: found for found in checkpoints.list()}
    if not saved:
        raise FileNotFoundError(f"{path} is not a run directory with a checkpoint, a checkpoint or a policy folder")
    if which == "latest":
        return _load_newest(checkpoints).eval().to(device)
    chosen = checkpoints.best() or checkpoints.latest() if which == "best" else None
    if str(which).isdecimal():
        chosen = saved.get(int(which))
    if chosen is None:
        raise ValueError(f"which={which!r}; choose 'latest', 'best' or one of the steps {sorted(saved)}")
    return _load(checkpoints, chosen).eval().to(device)


def _load_newest(checkpoints: Checkpoints) -> FramePolicy:
    """Loads the newest policy that is whole; warns about newer ones that are damaged."""
    *newer, oldest = reversed(checkpoints.list())
    for found in newer:
        try:
            return _load(checkpoints, found)
        except (CheckpointNotRestored, ValueError) as error:
            warnings.warn(f"checkpoint {found.path} is passed over: {error}", RuntimeWarning, stacklevel=3)
    return _load(checkpoints, oldest)


def _load(checkpoints: Checkpoints, chosen: SavedCheckpoint) -> FramePolicy:
    policy = _build(chosen.path, chosen.info.get("policy"))
    checkpoints.restore(components={"policy": policy.network}, step=chosen.step)
    policy.agent_step = chosen.step
    return policy


def _load_folder(folder: Path) -> FramePolicy:
    config, state = read_policy_folder(folder)
    policy = _build(folder, config["policy"])
    try:
        policy.network.load_state_dict(state)
    except (RuntimeError, ValueError) as error:
        raise CheckpointNotRestored(f"the weights in {folder} do not fit what its config describes: {error}") from None
    return policy


def _build(path: Path, described: Any) -> FramePolicy:
    """Builds a policy by its description, with weights that are still random."""
    kind = described.get("kind") if isinstance(described, dict) else None
    if not isinstance(described, dict) or str(kind) not in Policy.kinds:
        raise ValueError(
            f"{path} holds a policy of the kind {kind!r}; known are {sorted(Policy.kinds)}: import the module "
            "that defines it first"
        )
    try:
        network = Policy.kinds[str(kind)](**described["settings"])
        num_frames = check_count("num_frames", described["num_frames"])
        # Older checkpoints do not name a padding.
        raw = {key: described[key] for key in _RAW_KEYS if key in described}
        return FramePolicy(network, num_frames=num_frames, padding=described.get("padding", "repeat"), **raw)
    except (TypeError, KeyError, ValueError, RuntimeError) as error:
        raise CheckpointNotRestored(f"{path} describes its policy wrongly: {error}") from None


def export_policy(policy: FramePolicy, path: str | Path) -> Path:
    """Writes a policy to a file that ``torch.export.load`` reads where this package is not installed.

    The exported program takes a batch of stacks, uint8 ``[B, K * C, H, W]``, and returns actions ``[B, A]`` in [-1, 1],
    without gradients, or action indices ``[B]`` of a RainbowPolicy: ``torch.export.load(path).module()(stacks)``.

    Args:
        policy (FramePolicy): from :func:`load_policy`.
        path (str or Path): the file; torch's suffix is ``.pt2``.
    """
    shape = policy.network.settings["observation_shape"]
    example = torch.zeros(2, *shape, dtype=torch.uint8 if len(shape) == 3 else torch.float32)
    batch = torch.export.Dim("batch", min=1)
    network = copy.deepcopy(policy.network).cpu().eval().requires_grad_(False)
    for weight in network.parameters():
        weight.data = weight.data.contiguous()  # torch.export.save warns about weights in the channels-last layout
    with torch.no_grad():
        program = torch.export.export(network, (example,), dynamic_shapes=({0: batch},))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, path)
    return path
