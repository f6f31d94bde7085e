"""ContrastiveTask: CURL and seq-CURL as one object beside RL."""

from __future__ import annotations

from collections.abc import Callable

from tensordict import TensorDictBase
from torch import Tensor, nn

from mcurl_torchrl.checks import check_choice, require
from mcurl_torchrl.modules import project_encoder
from mcurl_torchrl.objectives.contrastive import ContrastiveLoss
from mcurl_torchrl.objectives.encoding_task import EncodingTask
from mcurl_torchrl.replay import FrameReplayBuffer
from mcurl_torchrl.transforms import KEY_VIEW, QUERY_VIEW, AugmentedViews

__all__ = ["ContrastiveTask"]

_VIEWS = ("batch", "slices")


class ContrastiveTask(EncodingTask):
    """Trains latents that match two views of the same observation (CURL, https://arxiv.org/abs/2004.04136).

    With ``views="batch"`` the observations are those of RL's own batch: the task adds its views to every batch that
    ``buffer.sample()`` returns, before the buffer's other transforms, and :meth:`loss` takes such a batch. With
    ``views="slices"`` it draws slices of consecutive observations of its own: M-CURL's ablation seq-CURL.
    Metric: ``contrastive_accuracy``.

    Args:
        encoder (nn.Module): pixels ``[*, C, H, W]`` to latents ``[*, d]``, with ``feature_dim``.
        buffer (FrameReplayBuffer): the replay buffer of the RL agent.

    Keyword Args:
        augmentation, target_encoder, tau: as in :class:`~mcurl_torchrl.MaskedContrastiveTask`.
        views (str): ``"batch"`` or ``"slices"``. Defaults to ``"batch"``.
        share_query (bool): whether, with ``views="batch"``, the query view is the observation that RL learns from, as
            CURL does with SAC, where the buffer crops it; else the task makes both views. Defaults to False.
        num_slices, slice_len (int): of ``views="slices"``. Default to 16 and 32.
        temperature (float), reduction (str): as in :class:`~mcurl_torchrl.ContrastiveLoss`. Default to 1 and
            ``"mean"``.
        projection (str), feature_dim, hidden_dim (int): as in :func:`~mcurl_torchrl.modules.project_encoder`. Default
            to ``"none"``, 128 and 256.
        coeff (float): the weight of the loss. Defaults to 1.

    Examples:
        >>> from torchrl.data import LazyTensorStorage
        >>> from mcurl_torchrl import ContrastiveTask, FrameReplayBuffer, PixelEncoder, RandomCrop
        >>> buffer = FrameReplayBuffer(storage=LazyTensorStorage(1000), num_frames=3, batch_size=32)
        >>> task = ContrastiveTask(PixelEncoder(9, 84), buffer, augmentation=RandomCrop(84))
        >>> # in the training loop: batch = buffer.sample(); loss = rl_loss + task.loss(batch)
    """

    shown = ("contrastive_accuracy",)
    loss_module: ContrastiveLoss

    def __init__(
        self,
        encoder: nn.Module,
        buffer: FrameReplayBuffer,
        *,
        augmentation: Callable[[Tensor], Tensor] | None = None,
        target_encoder: nn.Module | None = None,
        tau: float = 0.05,
        views: str = "batch",
        share_query: bool = False,
        num_slices: int = 16,
        slice_len: int = 32,
        temperature: float = 1.0,
        reduction: str = "mean",
        projection: str = "none",
        feature_dim: int = 128,
        hidden_dim: int = 256,
        coeff: float = 1.0,
    ) -> None:
        super().__init__(encoder, coeff=coeff)
        check_choice("views", views, _VIEWS)
        projected = project_encoder(encoder, projection, feature_dim=feature_dim, hidden_dim=hidden_dim)
        loss = ContrastiveLoss(
            projected,
            latent_dim=projected.feature_dim,  # type: ignore[arg-type]
            temperature=temperature,
            reduction=reduction,
            target_encoder_network=target_encoder,
            ranks=buffer.ranks,
        ).to(self.device)
        self.hold(loss, encoder, tau=tau)
        if views == "slices":
            pair = AugmentedViews(augmentation, in_key=buffer.pixels_key)
            self.read_slices(buffer, num_slices=num_slices, slice_len=slice_len, transform=pair)
        else:
            keys = [KEY_VIEW] if share_query else [QUERY_VIEW, KEY_VIEW]
            buffer.insert_transform(0, AugmentedViews(augmentation, in_key=buffer.pixels_key, out_keys=keys))
            if share_query:
                self.loss_module.set_keys(query_pixels=buffer.pixels_key)

    def reset_networks(self, keep: float) -> list[nn.Parameter]:
        """Draws new weights of projection and bilinear form; a slow copy of the encoder keeps a part of its weights."""
        new = super().reset_networks(keep)
        nn.init.uniform_(self.loss_module.bilinear)
        return [*new, self.loss_module.bilinear]

    def sample(self, batch: TensorDictBase | None = None) -> TensorDictBase:
        """Returns the batch, to which the buffer has added the views, or draws slices ``[num_slices, slice_len]``."""
        if self._slices is not None:
            return super().sample(batch)
        if batch is None:
            raise ValueError("views='batch' needs the batch that RL learns from: task.loss(buffer.sample())")
        require(batch, KEY_VIEW, self)
        return batch
