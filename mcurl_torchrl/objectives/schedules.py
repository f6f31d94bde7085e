"""Schedules of learning rates, and of numbers that change linearly with the step."""

from __future__ import annotations

from collections.abc import Callable

from mcurl_torchrl.checks import check_count

__all__ = ["inverse_sqrt_warmup", "linear_schedule"]


def inverse_sqrt_warmup(
    warmup_steps: int, *, initial_scale: float = 5e-4, constant_warmup: bool = False
) -> Callable[[int], float]:
    """Makes the schedule of M-CURL's Transformer, for :class:`torch.optim.lr_scheduler.LambdaLR`.

    The learning rate grows linearly from ``initial_scale`` times the base rate to the base rate over ``warmup_steps``
    updates, then falls as ``sqrt(warmup_steps / step)``.

    Args:
        warmup_steps (int): the released code has 6000 * 4 / action repeat, the paper 6000.

    Keyword Args:
        initial_scale (float): the first factor; the released code has 5e-4, the paper 0. Defaults to 5e-4.
        constant_warmup (bool): whether the factor is 1 until ``warmup_steps``, as in the released code for the
            contrastive optimizer of the encoder. Defaults to False.

    Returns:
        A function from the number of updates so far to the factor.

    Examples:
        >>> from mcurl_torchrl import inverse_sqrt_warmup
        >>> scale = inverse_sqrt_warmup(100, initial_scale=0.0)
        >>> [scale(0), scale(50), scale(100), scale(400)]
        [0.0, 0.5, 1.0, 0.5]
    """
    check_count("warmup_steps", warmup_steps)
    if not 0 <= initial_scale <= 1:
        raise ValueError(f"initial_scale={initial_scale}; it must be between 0 and 1")

    def scale(step: int) -> float:
        if step >= warmup_steps:
            return (warmup_steps / step) ** 0.5
        return 1.0 if constant_warmup else initial_scale + (1.0 - initial_scale) * step / warmup_steps

    return scale


def linear_schedule(begin: tuple[int, float], end: tuple[int, float]) -> Callable[[int], float]:
    """Makes a schedule that is linear between two steps, and constant before and after them.

    Args:
        begin (tuple of int and float): a step and the value until it.
        end (tuple of int and float): a step and the value from it on; the same step as the first makes a jump.

    Returns:
        A function from a step to the value.

    Raises:
        ValueError: if the second step comes before the first.

    Examples:
        >>> from mcurl_torchrl.objectives import linear_schedule
        >>> beta = linear_schedule((1600, 0.4), (100_000, 1.0))
        >>> [round(beta(step), 3) for step in (1, 1600, 50_800, 100_000, 200_000)]
        [0.4, 0.4, 0.7, 1.0, 1.0]
    """
    (first, low), (last, high) = begin, end
    if last < first:
        raise ValueError(f"begin={begin}, end={end}; the second step must not come before the first")

    def value(step: int) -> float:
        if step >= last:
            return high
        return low if step <= first else low + (high - low) * (step - first) / (last - first)

    return value
