"""ActionContrastiveTask: M-CURL with actions in the masked sequence, as one object beside RL."""

from __future__ import annotations

from collections.abc import Callable

from tensordict.utils import NestedKey
from torch import Tensor, nn
from torchrl.data import TensorSpec

from mcurl_torchrl.checks import check_choice
from mcurl_torchrl.modules import ActionContext, ActionEmbedding, ContextTransformer
from mcurl_torchrl.modules.actions import ACTION_LAYOUTS
from mcurl_torchrl.objectives.masked_contrastive_task import MaskedContrastiveTask
from mcurl_torchrl.replay import FrameReplayBuffer
from mcurl_torchrl.replay.windows import FINAL_KEY

__all__ = ["ActionContrastiveTask"]


class ActionContrastiveTask(MaskedContrastiveTask):
    """Reconstructs the hidden observations of slices from their neighbors and from all actions.

    It is M-CURL (:class:`~mcurl_torchrl.MaskedContrastiveTask`) with one addition: the context Transformer sees the
    action at every observation, hidden or not. The paper names this as future work. Its released code has an embedding
    of actions, but does not use it; this task uses that embedding. The predictions and the loss are those of M-CURL.
    Metrics: as in :class:`~mcurl_torchrl.MaskedContrastiveLoss`.

    Args:
        encoder (nn.Module): pixels ``[*, C, H, W]`` to latents ``[*, d]``, with ``feature_dim``.
        buffer (FrameReplayBuffer): the replay buffer of the RL agent; actions are read under its ``action_key``.

    Keyword Args:
        action_spec (TensorSpec): ``env.action_spec``, continuous or discrete.
        layout (str): where actions are: ``"interleaved"``, tokens of their own between the observations', or
            ``"added"`` to the observations' tokens. Defaults to ``"interleaved"``.
        augmentation, target_encoder, tau, num_slices, slice_len, mask_ratio, zero, replace, num_layers, num_heads,
            dropout, scale_attention, negatives, reduction, temperature, key_context, projection, feature_dim,
            hidden_dim, coeff, warmup_updates, warmup_initial_scale: as in
            :class:`~mcurl_torchrl.MaskedContrastiveTask`.

    Examples:
        >>> from torchrl.data import Bounded, LazyTensorStorage
        >>> from mcurl_torchrl import FrameReplayBuffer, PixelEncoder, RandomCrop
        >>> from mcurl_torchrl.objectives.action_contrastive_task import ActionContrastiveTask
        >>> buffer = FrameReplayBuffer(storage=LazyTensorStorage(1000), num_frames=3, batch_size=32)
        >>> actions = Bounded(-1, 1, shape=(6,))
        >>> task = ActionContrastiveTask(PixelEncoder(9, 84), buffer, action_spec=actions, augmentation=RandomCrop(84))
        >>> task.loss_module.context_keys
        ('action', 'final')
    """

    layout: str

    def __init__(
        self,
        encoder: nn.Module,
        buffer: FrameReplayBuffer,
        *,
        action_spec: TensorSpec,
        layout: str = "interleaved",
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
        # Set before the constructor of the base class, which makes the context network from them.
        self.__dict__["_action_spec"] = action_spec
        self.__dict__["layout"] = check_choice("layout", layout, ACTION_LAYOUTS)
        super().__init__(
            encoder,
            buffer,
            augmentation=augmentation,
            target_encoder=target_encoder,
            tau=tau,
            num_slices=num_slices,
            slice_len=slice_len,
            mask_ratio=mask_ratio,
            zero=zero,
            replace=replace,
            num_layers=num_layers,
            num_heads=num_heads,
            dropout=dropout,
            scale_attention=scale_attention,
            negatives=negatives,
            reduction=reduction,
            temperature=temperature,
            key_context=key_context,
            projection=projection,
            feature_dim=feature_dim,
            hidden_dim=hidden_dim,
            coeff=coeff,
            warmup_updates=warmup_updates,
            warmup_initial_scale=warmup_initial_scale,
        )

    def _make_context(self, transformer: ContextTransformer) -> nn.Module:
        size = transformer.feature_dim
        embedding = ActionEmbedding(self.__dict__["_action_spec"], size, hidden_dim=2 * size)
        return ActionContext(transformer, embedding, layout=self.layout)

    def _context_keys(self, buffer: FrameReplayBuffer) -> tuple[NestedKey, ...]:
        return buffer.action_key, FINAL_KEY
