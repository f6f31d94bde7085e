"""The learners' optimisations, one by one, each with the plain code that it replaces.

The package has no such switches. Here the plain code replaces an optimisation from outside: benchmarks measure the gain
of the optimisation, and tests/test_switches.py shows that it changes no result. A learner must be built and run while
the switch is off:

    with switched_off("channels_last", "fused_adam"):
        learner = make_learner("sac", "env=cartpole-swingup")
        learner.step()
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import setups
import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from mcurl_torchrl import FrameReplayBuffer, LatentSAC
from mcurl_torchrl.agents import rainbow, sac
from mcurl_torchrl.modules import encoders
from mcurl_torchrl.objectives import masked_contrastive_task
from mcurl_torchrl.transforms import crops
from mcurl_torchrl.transforms.functional import sides


@dataclass(frozen=True)
class Plain:
    """Plain code: ``make`` gets the attribute ``owner.name`` and returns its replacement."""

    owner: Any
    name: str
    make: Callable[[Any], Any]


@dataclass(frozen=True)
class Switch:
    """An optimisation, and the plain code that it replaces."""

    name: str
    description: str
    plain: tuple[Plain, ...]
    learners: tuple[str, ...] = ("sac mcurl", "rainbow mcurl", "rainbow curl")  # the learners that use it

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Replaces the optimisation by the plain code."""
        with contextlib.ExitStack() as stack:
            for plain in self.plain:
                made = plain.make(getattr(plain.owner, plain.name))
                stack.enter_context(mock.patch.object(plain.owner, plain.name, made))
            yield


@contextlib.contextmanager
def switched_off(*names: str) -> Iterator[None]:
    """Replaces several optimisations by the plain code."""
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(SWITCHES[name].off())
        yield


# -- the plain code ----------------------------------------------------------------------------------------------------


def encode_every_query(make_loss: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        return make_loss(*args, **kwargs, encode_zeros_once=False)

    return make


def weights_row_by_row(init: Callable[..., None]) -> Callable[..., None]:
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.to(memory_format=torch.contiguous_format)

    return build


def features_row_by_row(features: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(self: Any, pixels: Tensor) -> Tensor:
        lead = pixels.shape[:-3]
        images = pixels.reshape(-1, *pixels.shape[-3:]).contiguous()
        if images.dtype == torch.uint8:
            images = images.to(self.dtype) / 255.0
        return self.convs(images).flatten(1).view(*lead, self.num_features)

    return run


def relu_in_new_memory(init: Callable[..., None]) -> Callable[..., None]:
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        for layer in self.convs:
            if isinstance(layer, nn.ReLU):
                layer.inplace = False

    return build


def leave_as_stored(init: Callable[..., None]) -> Callable[..., None]:
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **{**kwargs, "channels_last": False})

    return build


def two_passes_of_the_convolutions(actor_loss: Callable[..., Any]) -> Callable[..., Any]:
    def compute(self: LatentSAC, batch: TensorDictBase) -> Any:
        encoder = self.encoder
        project = encoder.project

        def project_from_pixels(features: Tensor) -> Tensor:
            return project(encoder.features(batch[self.pixels_key]))

        with mock.patch.object(encoder, "project", project_from_pixels):
            return actor_loss(self, batch)

    return compute


def adam_tensor_by_tensor(make_adam: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, fused: bool, **kwargs: Any) -> Any:
        return make_adam(*args, **kwargs, fused=False, foreach=False)

    return make


def crop_image_by_image(crop: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def cut(images: Tensor, top: Tensor, left: Tensor, size: int | tuple[int, int]) -> Tensor:
        height, width = sides(size)
        places = zip(images, top.tolist(), left.tolist(), strict=True)
        return torch.stack([image[:, y : y + height, x : x + width] for image, y, x in places])

    return cut


def shift_image_by_image(shift: Callable[..., Tensor]) -> Callable[..., Tensor]:
    cut = crop_image_by_image(shift)

    def move(
        images: Tensor,
        top: Tensor,
        left: Tensor,
        size: int | tuple[int, int],
        padding: int,
        down: Tensor,
        right: Tensor,
    ) -> Tensor:
        inner = cut(images, top, left, size)
        rows = [inner[..., :1, :]] * padding + [inner] + [inner[..., -1:, :]] * padding
        tall = torch.cat(rows, -2)
        wide = torch.cat([tall[..., :1]] * padding + [tall] + [tall[..., -1:]] * padding, -1)
        return cut(wide, down, right, (images.shape[-2], images.shape[-1]))

    return move


def leave_allocator_alone(keep_freed_pages: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: False


# -- the switches ------------------------------------------------------------------------------------------------------

# If several are off, a later one replaces the plain code of an earlier one.
SWITCHES = {
    switch.name: switch
    for switch in [
        Switch(
            "zeros_once",
            "zeroed queries are encoded once; off: every query is encoded",
            (Plain(masked_contrastive_task, "MaskedContrastiveLoss", encode_every_query),),
            ("sac mcurl", "rainbow mcurl"),
        ),
        Switch(
            "shared_conv_pass",
            "actor and critic share a pass of the convolutions in the actor's step; off: one each",
            (Plain(LatentSAC, "actor_loss", two_passes_of_the_convolutions),),
            ("sac mcurl",),
        ),
        Switch(
            "channels_last_replay",
            "observations are channels-last from the replay on; off: from the encoder on",
            (Plain(FrameReplayBuffer, "__init__", leave_as_stored),),
        ),
        Switch(
            "channels_last",
            "channels-last images and weights; off: the channels first, from the replay to the last convolution",
            (
                Plain(FrameReplayBuffer, "__init__", leave_as_stored),
                Plain(encoders._ConvEncoder, "__init__", weights_row_by_row),
                Plain(encoders._ConvEncoder, "features", features_row_by_row),
            ),
        ),
        Switch(
            "inplace_relu",
            "ReLUs overwrite the outputs of the convolutions; off: they write to new memory",
            (Plain(encoders._ConvEncoder, "__init__", relu_in_new_memory),),
        ),
        Switch(
            "one_gather",
            "all images are cropped or shifted together; off: one by one",
            (Plain(crops, "crop", crop_image_by_image), Plain(crops, "shift", shift_image_by_image)),
        ),
        Switch(
            "fused_adam",
            "Adam in one kernel; off: a loop over parameters",
            (
                Plain(sac, "Adam", adam_tensor_by_tensor),
                Plain(rainbow, "Adam", adam_tensor_by_tensor),
            ),
        ),
        Switch(
            "allocator",
            "glibc keeps freed pages; off: its defaults (only in a process that has not changed them yet)",
            (Plain(setups, "keep_freed_pages", leave_allocator_alone),),
        ),
    ]
}
