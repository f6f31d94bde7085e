"""PredictiveCodingTask: contrastive predictive coding as one object beside RL."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from mcurl_torchrl.checks import check_count, check_number
from mcurl_torchrl.objectives.auxiliary_task import AuxiliaryTask
from mcurl_torchrl.objectives.functional import info_nce
from mcurl_torchrl.replay import FrameReplayBuffer
from mcurl_torchrl.transforms import AugmentedViews

__all__ = ["PredictiveCodingTask"]


class PredictiveCodingTask(AuxiliaryTask):
    """Predicts the latents of the next observations from the past ones (CPC, https://arxiv.org/abs/1807.03748).

    A GRU summarizes the past of a slice, and one linear map per step ahead predicts a latent. InfoNCE trains each
    prediction to match the latent of its own observation, and no other latent of the batch. Metric:
    ``prediction_accuracy``, the mean over the steps ahead.

    Args:
        encoder (nn.Module): pixels ``[*, C, H, W]`` to latents ``[*, d]``, with ``feature_dim``.
        buffer (FrameReplayBuffer): the replay buffer of the RL agent.

    Keyword Args:
        augmentation (callable, optional): images to images, one draw for each observation. Defaults to None.
        target_encoder (nn.Module, optional): encodes the latents to predict, without gradients. Defaults to None: the
            encoder itself does, with gradients, as in the paper.
        num_slices (int): slices in an update. Defaults to 16.
        slice_len (int): observations in a slice. Defaults to 32.
        steps_ahead (int): how many steps are predicted; below ``slice_len``. Defaults to 4.
        context_dim (int): the size of the GRU's state. Defaults to 64.
        temperature (float): divides the logits. Defaults to 1.
        coeff (float): the weight of the loss. Defaults to 1.

    Raises:
        ValueError: on numbers out of range.

    Examples:
        >>> from torchrl.data import LazyTensorStorage
        >>> from mcurl_torchrl import FrameReplayBuffer, PixelEncoder
        >>> from mcurl_torchrl.objectives.predictive_coding_task import PredictiveCodingTask
        >>> buffer = FrameReplayBuffer(storage=LazyTensorStorage(1000), num_frames=3)
        >>> task = PredictiveCodingTask(PixelEncoder(9, 84), buffer, steps_ahead=2)
        >>> len(task.predictions)
        2
    """

    shown = ("prediction_accuracy",)

    def __init__(
        self,
        encoder: nn.Module,
        buffer: FrameReplayBuffer,
        *,
        augmentation: Callable[[Tensor], Tensor] | None = None,
        target_encoder: nn.Module | None = None,
        num_slices: int = 16,
        slice_len: int = 32,
        steps_ahead: int = 4,
        context_dim: int = 64,
        temperature: float = 1.0,
        coeff: float = 1.0,
    ) -> None:
        super().__init__(encoder, coeff=coeff)
        if check_count("steps_ahead", steps_ahead) >= slice_len:
            raise ValueError(f"steps_ahead={steps_ahead}; it must be below slice_len={slice_len}")
        self.temperature = check_number("temperature", temperature, above=0)
        feature_dim: int = encoder.feature_dim  # type: ignore[assignment]
        self.encoder = encoder
        self.context = nn.GRU(feature_dim, context_dim, batch_first=True).to(self.device)
        self.predictions = nn.ModuleList(
            [nn.Linear(context_dim, feature_dim).to(self.device) for _ in range(steps_ahead)]
        )
        one_view = AugmentedViews(augmentation, in_key=buffer.pixels_key, out_keys=[buffer.pixels_key])
        self.__dict__["_target_encoder"] = target_encoder  # its owner saves it, moves it and trains it
        self._pixels_key, self._ranks = buffer.pixels_key, buffer.ranks
        self.read_slices(buffer, num_slices=num_slices, slice_len=slice_len, transform=one_view)

    def forward(self, views: TensorDictBase) -> TensorDictBase:
        """Returns ``loss_auxiliary`` and ``prediction_accuracy``."""
        pixels = views[self._pixels_key]
        latents = self.encoder(pixels)
        context, _ = self.context(latents)
        keys = self._ranks.gather(self._keys(pixels, latents))
        first_key = self._ranks.index * len(latents)
        losses, accuracies = [], []
        for ahead, predict in enumerate(self.predictions, start=1):
            loss, correct = info_nce(
                predict(context[:, :-ahead]), keys[:, ahead:], temperature=self.temperature, first_key=first_key
            )
            losses.append(loss.mean())
            accuracies.append(correct.float().mean())
        return TensorDict(
            {
                "loss_auxiliary": self.coeff * torch.stack(losses).mean(),
                "prediction_accuracy": torch.stack(accuracies).mean(),
            }
        )

    def _keys(self, pixels: Tensor, latents: Tensor) -> Tensor:
        target: nn.Module | None = self.__dict__["_target_encoder"]
        if target is None:
            return latents
        with torch.no_grad():
            return target(pixels)
