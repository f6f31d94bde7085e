"""Around the training loop: schedules."""

from mcurl_torchrl.training.schedules import inverse_sqrt_warmup

__all__ = ["inverse_sqrt_warmup"]
