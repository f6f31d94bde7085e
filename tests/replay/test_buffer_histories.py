"""The frame buffer against a slow, obvious one, on random histories."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.replay.histories import Setting, histories, play_and_check, random_history
from tests.replay.histories import settings as buffer_settings


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
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_random_histories(capsys: pytest.CaptureFixture[str]) -> None:
    started = time.perf_counter()
    shards = range(os.cpu_count() or 1)
    # Some more, because a number that is drawn twice counts once.
    command = [sys.executable, "-m", "tests.replay.many_histories", str(-(101_000 // -len(shards)))]
    root = Path(__file__).parents[2]
    processes = [
        subprocess.Popen([*command, str(shard)], cwd=root, stdout=subprocess.PIPE, text=True) for shard in shards
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(shards)
    count = sum(int(output.split("histories ")[-1]) for output in outputs)
    with capsys.disabled():
        print(f"\n{count} random histories in {time.perf_counter() - started:.0f} s")
    assert count >= 100_000
