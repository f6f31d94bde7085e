"""Plays many random histories: ``python -m tests.replay.many_histories COUNT SHARD``; prints how many were compared.

Hypothesis draws the seeds, each of which is one setting and one history; other shards draw others. A failure prints the
seed to play again.
"""

from __future__ import annotations

import logging
import random
import sys

import torch
import torchrl.data  # noqa: F401  (sets up its logger)
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.replay.histories import play_and_check, random_history, random_setting


def play_many(count: int, shard: int) -> int:
    """Plays ``count`` histories and returns how many different ones that were."""
    played: set[int] = set()

    @seed(shard)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**64 - 1))
    def play(number: int) -> None:
        rng = random.Random(number)
        setting = random_setting(rng)
        play_and_check(setting, random_history(rng, setting))
        played.add(number)

    play()
    return len(played)


if __name__ == "__main__":
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    print(f"histories {play_many(int(sys.argv[1]), int(sys.argv[2]))}")
