"""joint_parameters: each parameter once, for one optimizer; the calls with other parameters: test_encoding.py."""

from __future__ import annotations

import torch
from torch import nn

from mcurl_torchrl import ContrastiveLoss, MaskedContrastiveLoss, joint_parameters
from mcurl_torchrl.modules import ContextTransformer, PixelEncoder


def test_two_losses_that_share_an_encoder() -> None:
    encoder = PixelEncoder(3, 16, num_layers=2, num_filters=4, feature_dim=8)
    first = ContrastiveLoss(encoder, latent_dim=8)
    second = MaskedContrastiveLoss(encoder, ContextTransformer(8))
    joint = joint_parameters(first, second)
    counts = [len(list(part.parameters())) for part in (encoder, second.context_network)]
    assert len(joint) == len({id(value) for value in joint}) == counts[0] + 1 + counts[1]
    assert {id(value) for value in joint} == {id(v) for loss in (first, second) for v in loss.parameters()}
    torch.optim.Adam(joint)  # with doubles it warns


def test_modules_and_lists_of_parameters_in_their_order() -> None:
    first, second = nn.Linear(2, 3), nn.Linear(2, 4)
    second.bias.requires_grad_(False)
    joint = joint_parameters([second.weight], first, iter([first.bias, second.bias]))
    assert [value is other for value, other in zip(joint, (second.weight, first.weight, first.bias), strict=True)]
