"""WriterColumn: adds to each step of an environment the column of a replay buffer to which it is written."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torchrl.data import Composite, Unbounded
from torchrl.envs.transforms import Transform

from mcurl_torchrl.checks import check_count
from mcurl_torchrl.replay.step_reader import COLUMN_KEY

__all__ = ["WriterColumn"]


class WriterColumn(Transform):
    """Writes under ``"column"`` the column of a :class:`~mcurl_torchrl.FrameReplayBuffer` to which a step belongs.

    For collectors of several workers that write to one buffer: each worker's environment has its own column, so that
    the buffer can separate steps that arrive interleaved. A batch of n environments has the columns from ``first`` to
    ``first + n - 1``.

    Args:
        first (int): the column of the first environment, from 0.

    Examples:
        >>> from torchrl.envs import GymEnv, TransformedEnv
        >>> from mcurl_torchrl.transforms import WriterColumn
        >>> env = TransformedEnv(GymEnv("Pendulum-v1"), WriterColumn(3))
        >>> env.rollout(2)["column"]
        tensor([3, 3])
    """

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = check_count("first", first, least=0)

    def _write(self, data: TensorDictBase) -> TensorDictBase:
        columns = self.first + torch.arange(data.batch_size.numel(), device=data.device)
        return data.set(COLUMN_KEY, columns.view(data.batch_size))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._write(tensordict_reset)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._write(next_tensordict)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the column."""
        shape = observation_spec.shape
        observation_spec[COLUMN_KEY] = Unbounded(shape, dtype=torch.int64, device=observation_spec.device)
        return observation_spec
