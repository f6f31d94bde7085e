"""MaskedReconstructionTask: masked latent reconstruction (MLR) as one object beside RL."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.data import TensorSpec
from torchrl.envs import Compose

from mcurl_torchrl.checks import check_choice, require
from mcurl_torchrl.modules import ActionEmbedding, DuelingHead, HeadProjection, MomentumCopy, ReconstructionTransformer
from mcurl_torchrl.modules.reconstruction import SmallNetwork
from mcurl_torchrl.objectives.auxiliary_task import AuxiliaryTask
from mcurl_torchrl.objectives.functional import normalized_distance
from mcurl_torchrl.replay import FrameReplayBuffer
from mcurl_torchrl.replay.windows import FINAL_KEY
from mcurl_torchrl.transforms import KEY_VIEW, QUERY_VIEW, AugmentedViews, MaskCubes

__all__ = ["MaskedReconstructionTask"]

_PROJECTORS = ("mlp", "head")


class MaskedReconstructionTask(AuxiliaryTask):
    """Reconstructs the latents of slices in which cubes of space and time are hidden (MLR).

    Draws slices of consecutive observations and their actions, and hides cubes of the query view before it is
    augmented. The Transformer's output at every observation goes through a projection and a predictor; the loss is its
    distance in direction from the projected target latent of the whole observation. See
    https://arxiv.org/abs/2201.12096. Metric: ``reconstruction_similarity``, the mean cosine of predictions and targets.

    Args:
        encoder (nn.Module): pixels ``[*, C, H, W]`` to latents ``[*, d]``, with ``feature_dim``.
        buffer (FrameReplayBuffer): the replay buffer of the RL agent; actions are read under its ``action_key``.

    Keyword Args:
        action_spec (TensorSpec): ``env.action_spec``, continuous or discrete.
        augmentation (callable, optional): images to images, called once for each view; MLR uses a crop or a shift, and
            a change of brightness (:func:`~mcurl_torchrl.transforms.make_augmentation`). Defaults to None.
        target_encoder (nn.Module, optional): encodes the targets, and belongs to another object, which updates it.
            Defaults to None: the task has a slow copy of its own.
        head (DuelingHead, optional): for ``projector="head"``. Defaults to None.
        tau (float): how far :meth:`update_targets` moves the task's own slow copies. Defaults to 0.05.
        num_slices, slice_len (int): of an update. Default to 128 and 16.
        mask_ratio (float), patch_size, block_len (int): as in :class:`~mcurl_torchrl.transforms.MaskCubes`. Default to
            0.5, 10 and 8.
        num_layers, num_heads (int): as in :class:`~mcurl_torchrl.modules.ReconstructionTransformer`. Default to 2, 1.
        projector (str): ``"mlp"``, two layers each for projection and predictor, as in the released code for SAC, or
            ``"head"``, the first layers of the agent's head and one linear layer, as in the released code for Rainbow.
            Defaults to ``"mlp"``.
        hidden_dim (int): of ``"mlp"``. Defaults to 100.
        coeff, warmup_updates, warmup_initial_scale, lr_scale: as in :class:`~mcurl_torchrl.AuxiliaryTask`.

    Raises:
        ValueError: on numbers out of range, and on ``projector="head"`` without a head.

    Examples:
        >>> from torchrl.data import Bounded, LazyTensorStorage
        >>> from mcurl_torchrl import FrameReplayBuffer, PixelEncoder, RandomCrop
        >>> from mcurl_torchrl.objectives.masked_reconstruction_task import MaskedReconstructionTask
        >>> buffer = FrameReplayBuffer(storage=LazyTensorStorage(1000), num_frames=3, batch_size=32)
        >>> task = MaskedReconstructionTask(
        ...     PixelEncoder(9, 84), buffer, action_spec=Bounded(-1, 1, shape=(6,)), augmentation=RandomCrop(84)
        ... )
        >>> task.shown
        ('reconstruction_similarity',)
    """

    shown = ("reconstruction_similarity",)

    def __init__(
        self,
        encoder: nn.Module,
        buffer: FrameReplayBuffer,
        *,
        action_spec: TensorSpec,
        augmentation: Callable[[Tensor], Tensor] | None = None,
        target_encoder: nn.Module | None = None,
        head: DuelingHead | None = None,
        tau: float = 0.05,
        num_slices: int = 128,
        slice_len: int = 16,
        mask_ratio: float = 0.5,
        patch_size: int = 10,
        block_len: int = 8,
        num_layers: int = 2,
        num_heads: int = 1,
        projector: str = "mlp",
        hidden_dim: int = 100,
        coeff: float = 1.0,
        warmup_updates: int | None = None,
        warmup_initial_scale: float = 5e-4,
        lr_scale: float = 1.0,
    ) -> None:
        super().__init__(
            encoder,
            coeff=coeff,
            warmup_updates=warmup_updates,
            warmup_initial_scale=warmup_initial_scale,
            lr_scale=lr_scale,
            shared=[] if head is None else [head],
        )
        self.projection: nn.Module
        self.predictor: nn.Module
        size: int = encoder.feature_dim  # type: ignore[assignment]
        self.encoder = encoder
        self.action_key = buffer.action_key
        embedding = ActionEmbedding(action_spec, size)
        self.context = ReconstructionTransformer(embedding, size, num_layers=num_layers, num_heads=num_heads)
        if check_choice("projector", projector, _PROJECTORS) == "mlp":
            self.projection = SmallNetwork(size, hidden_dim)
            self.predictor = SmallNetwork(size, hidden_dim)
        elif head is None:
            raise ValueError("projector='head' needs the agent's head, which SAC does not have; use projector='mlp'")
        else:
            self.projection = HeadProjection(head)
            self.predictor = nn.Linear(head.hidden_dim, head.hidden_dim)
        self.to(self.device)
        self.target_projection = MomentumCopy(self.projection, tau=tau)
        self._own_target = MomentumCopy(encoder, tau=tau) if target_encoder is None else None
        self.__dict__["_shared_target"] = target_encoder  # its owner saves it, moves it and trains it
        mask = MaskCubes(
            mask_ratio, patch_size=patch_size, block_len=block_len, slice_len=slice_len, in_key=buffer.pixels_key
        )
        views = Compose(
            mask,
            AugmentedViews(augmentation, in_key=QUERY_VIEW, out_keys=[QUERY_VIEW]),
            AugmentedViews(augmentation, in_key=buffer.pixels_key, out_keys=[KEY_VIEW]),
        )
        keys = [buffer.pixels_key, buffer.action_key]
        self.read_slices(buffer, num_slices=num_slices, slice_len=slice_len, keys=keys, transform=views)

    def forward(self, views: TensorDictBase) -> TensorDictBase:
        """Returns ``loss_auxiliary`` and ``reconstruction_similarity`` of a batch ``[B, T]``."""
        latents = self.encoder(require(views, QUERY_VIEW, self))
        made = self.context(latents, require(views, self.action_key, self), require(views, FINAL_KEY, self))
        predictions = self.predictor(self.projection(made))
        distance = normalized_distance(predictions, self._targets(require(views, KEY_VIEW, self))).mean()
        return TensorDict(
            {"loss_auxiliary": self.coeff * distance, "reconstruction_similarity": 1 - distance.detach() / 2}
        )

    @torch.no_grad()
    def _targets(self, pixels: Tensor) -> Tensor:
        target: nn.Module = self.__dict__["_shared_target"] if self._own_target is None else self._own_target
        return self.target_projection(target(pixels))

    def update_targets(self) -> None:
        """Updates the slow copies of the projection and, if the task has one, of the encoder."""
        self.target_projection.step()
        if self._own_target is not None:
            self._own_target.step()
