"""MaskedContrastiveTask: M-CURL as one object beside RL."""

from __future__ import annotations

from collections.abc import Callable

from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.envs import Compose

from mcurl_torchrl.checks import check_number
from mcurl_torchrl.modules import ContextTransformer, project_encoder
from mcurl_torchrl.objectives.encoding_task import EncodingTask
from mcurl_torchrl.objectives.masked_contrastive import MaskedContrastiveLoss
from mcurl_torchrl.replay import FrameReplayBuffer
from mcurl_torchrl.transforms import AugmentedViews, MaskObservations

__all__ = ["MaskedContrastiveTask"]


class MaskedContrastiveTask(EncodingTask):
    """Reconstructs the hidden observations of slices, in latent space (M-CURL, https://arxiv.org/abs/2010.07470).

    Draws slices of consecutive observations from a replay buffer, makes two augmented views of them, hides observations
    of the query view, and trains the encoder and a context Transformer with
    :class:`~mcurl_torchrl.MaskedContrastiveLoss`. Metrics: ``contrastive_accuracy``, ``contrastive_accuracy_zeroed``
    and ``masked_fraction``, as in that loss.

    Args:
        encoder (nn.Module): pixels ``[*, C, H, W]`` to latents ``[*, d]``, with ``feature_dim``, like
            :class:`~mcurl_torchrl.PixelEncoder`.
        buffer (FrameReplayBuffer): the replay buffer of the RL agent.

    Keyword Args:
        augmentation (callable, optional): images to images, called once for each view, such as
            :class:`~mcurl_torchrl.RandomCrop`. Defaults to None: no augmentation.
        target_encoder (nn.Module, optional): encodes the keys, and belongs to another object, which updates it.
            Defaults to None: the task has a slow copy of its own.
        tau (float): how far :meth:`update_targets` moves the task's own slow copies. Defaults to 0.05.
        num_slices (int): slices in an update. Defaults to 16.
        slice_len (int): observations in a slice. Defaults to 32.
        mask_ratio, zero, replace (float): as in :class:`~mcurl_torchrl.MaskObservations`; ``mask_ratio`` must be above
            0. Default to 0.5, 0.8 and 0.1.
        num_layers, num_heads (int), dropout (float), scale_attention (bool): as in
            :class:`~mcurl_torchrl.ContextTransformer`. Default to 2, 1, 0.1 and True.
        negatives, reduction (str), temperature (float), key_context (bool): as in
            :class:`~mcurl_torchrl.MaskedContrastiveLoss`; ``key_context=True`` is sym-CURL. Default to ``"batch"``,
            ``"mean"``, 1 and False.
        projection (str), feature_dim, hidden_dim (int): as in :func:`~mcurl_torchrl.modules.project_encoder`. Default
            to ``"none"``, 128 and 256.
        coeff (float), warmup_updates (int, optional), warmup_initial_scale (float): as in
            :class:`~mcurl_torchrl.AuxiliaryTask`.

    Examples:
        >>> import torch
        >>> from torchrl.data import LazyTensorStorage
        >>> from mcurl_torchrl import FrameReplayBuffer, MaskedContrastiveTask, PixelEncoder, RandomCrop
        >>> buffer = FrameReplayBuffer(storage=LazyTensorStorage(1000), num_frames=3, batch_size=32)
        >>> encoder = PixelEncoder(9, 84)
        >>> task = MaskedContrastiveTask(encoder, buffer, augmentation=RandomCrop(84))
        >>> optimizer = torch.optim.Adam([*encoder.parameters(), *task.own_parameters()], lr=1e-3)
        >>> # in the training loop: (rl_loss + task.loss()).backward(); optimizer.step(); task.update_targets()
    """

    shown = ("contrastive_accuracy",)
    loss_module: MaskedContrastiveLoss

    def __init__(
        self,
        encoder: nn.Module,
        buffer: FrameReplayBuffer,
        *,
        augmentation: Callable[[Tensor], Tensor] | None = None,
        target_encoder: nn.Module | None = None,
        tau: float = 0.05,
        num_slices: int = 16,
        slice_len: int = 32,
        mask_ratio: float = 0.5,
        zero: float = 0.8,
        replace: float = 0.1,
        num_layers: int = 2,
        num_heads: int = 1,
        dropout: float = 0.1,
        scale_attention: bool = True,
        negatives: str = "batch",
        reduction: str = "mean",
        temperature: float = 1.0,
        key_context: bool = False,
        projection: str = "none",
        feature_dim: int = 128,
        hidden_dim: int = 256,
        coeff: float = 1.0,
        warmup_updates: int | None = None,
        warmup_initial_scale: float = 5e-4,
    ) -> None:
        super().__init__(encoder, coeff=coeff, warmup_updates=warmup_updates, warmup_initial_scale=warmup_initial_scale)
        check_number("mask_ratio", mask_ratio, above=0, most=1)  # with 0 there is nothing to learn
        projected = project_encoder(encoder, projection, feature_dim=feature_dim, hidden_dim=hidden_dim)
        context = ContextTransformer(
            projected.feature_dim,  # type: ignore[arg-type]
            num_layers=num_layers,
            num_heads=num_heads,
            dropout=dropout,
            scale_attention=scale_attention,
        )
        reconstructing = self._make_context(context).to(self.device)
        loss = MaskedContrastiveLoss(
            projected,
            reconstructing,
            negatives=negatives,
            temperature=temperature,
            key_context=key_context,
            reduction=reduction,
            target_encoder_network=target_encoder,
            context_keys=self._context_keys(buffer),
            ranks=buffer.ranks,
        )
        self.hold(loss, encoder, tau=tau, context=reconstructing)
        mask = MaskObservations(
            mask_ratio,
            zero=zero,
            replace=replace,
            source=buffer.observations,
            augment=augmentation,
            slice_len=slice_len,
        )
        views = Compose(AugmentedViews(augmentation, in_key=buffer.pixels_key), mask)
        keys = [buffer.pixels_key, *self._context_keys(buffer)]
        self.read_slices(buffer, num_slices=num_slices, slice_len=slice_len, keys=keys, transform=views)

    def _make_context(self, transformer: ContextTransformer) -> nn.Module:
        """Returns the network that reconstructs latents; a subclass may wrap the Transformer in another network."""
        return transformer

    def _context_keys(self, buffer: FrameReplayBuffer) -> tuple[NestedKey, ...]:
        """Returns the stored entries that the context network gets after the latents."""
        return ()
