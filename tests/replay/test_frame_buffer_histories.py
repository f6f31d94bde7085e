"""The frame buffer against a slow, obvious one, on random histories."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.replay.histories import Player, Setting, histories, random_history, random_setting
from tests.replay.histories import settings as buffer_settings


def play_and_check(setting: Setting, history: list) -> None:
    player = Player(setting)
    with player.folder:
        player.play(history)
        if player.plain.num_episodes:
            player.check()


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_random_histories(data: st.DataObject) -> None:
    setting = data.draw(buffer_settings(), label="setting")
    play_and_check(setting, data.draw(histories(setting), label="history"))


@pytest.mark.parametrize("memmap", [False, True])
@pytest.mark.parametrize("num_columns", [1, 3])
def test_memory_and_disk(memmap: bool, num_columns: int) -> None:
    setting = Setting(40, num_columns, 3, 3, 5, memmap=memmap, stacked_input=True)
    rng = random.Random(0)
    for _ in range(5):
        play_and_check(setting, random_history(rng, setting))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_random_histories(capsys: pytest.CaptureFixture[str]) -> None:
    count = 0
    started = time.perf_counter()

    @settings(max_examples=100_000, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.integers(0, 2**64 - 1))
    def run(seed: int) -> None:
        nonlocal count
        rng = random.Random(seed)
        setting = random_setting(rng)
        play_and_check(setting, random_history(rng, setting))
        count += 1

    run()
    assert count >= 100_000
    with capsys.disabled():
        print(f"\n{count} random histories in {time.perf_counter() - started:.0f} s")
