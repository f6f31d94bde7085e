"""Signals set a flag, a second Ctrl-C interrupts at once, and the signal handlers are restored afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from mcurl_torchrl.training import stopping
from mcurl_torchrl.training.stopping import catch_stop_signals

FILE = stopping.__file__


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores SIGINT
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_the_flag_and_the_step_goes_on(number: signal.Signals) -> None:
    finished = []
    with catch_stop_signals() as stop:
        assert not stop.requested and stop.signal_name is None
        for step in range(5):
            if step == 2:
                send(number)
            finished.append(step)
            if stop.requested:
                break
    assert finished == [0, 1, 2]
    assert stop.requested and stop.signal_name == number.name


def test_a_second_sigint_does_not_wait() -> None:
    with pytest.raises(KeyboardInterrupt), catch_stop_signals() as stop:
        send(signal.SIGINT)
        assert stop.requested
        send(signal.SIGINT)
        pytest.fail("went on after the second SIGINT")
    assert stop.signal_name == "SIGINT"


def test_sigterm_never_interrupts_and_the_first_signal_is_named() -> None:
    with catch_stop_signals() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            send(number)
    assert stop.signal_name == "SIGTERM"


@pytest.mark.parametrize("failing", [False, True])
def test_handlers_are_put_back(failing: bool) -> None:
    calls = []
    signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with catch_stop_signals():
            send(signal.SIGTERM)
            if failing:
                raise RuntimeError
    except RuntimeError:
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert calls == []
    send(signal.SIGTERM)
    assert calls == [signal.SIGTERM]


def test_nested_ones_give_the_flag_back() -> None:
    with catch_stop_signals() as outer:
        with catch_stop_signals() as inner:
            send(signal.SIGTERM)
        assert inner.requested and not outer.requested
        send(signal.SIGTERM)
        assert outer.requested


def test_in_another_thread_it_does_nothing() -> None:
    seen = []

    def work() -> None:
        before = signal.getsignal(signal.SIGINT)
        with catch_stop_signals() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, True)]


def test_a_forked_worker_still_ends_when_told_to() -> None:
    program = """
import multiprocessing, runpy, sys, time
catch_stop_signals = runpy.run_path(sys.argv[1])["catch_stop_signals"]  # without torch, which takes seconds
with catch_stop_signals() as stop:
    fork = multiprocessing.get_context("fork")
    started = fork.Event()
    worker = fork.Process(target=lambda: (started.set(), time.sleep(60)))
    worker.start()
    started.wait()
    worker.terminate()
    worker.join()
    print(worker.exitcode, stop.requested)
"""
    done = subprocess.run([sys.executable, "-c", program, FILE], capture_output=True, text=True)
    assert done.stdout.split() == [str(-signal.SIGTERM), "False"], done.stderr


def test_a_real_run_finishes_its_step_and_saves() -> None:
    program = """
import runpy, sys, time
catch_stop_signals = runpy.run_path(sys.argv[1])["catch_stop_signals"]  # without torch, which takes seconds
with catch_stop_signals() as stop:
    print("started", flush=True)
    while not stop.requested:
        time.sleep(0.01)
print("saved after", stop.signal_name)
"""
    process = subprocess.Popen([sys.executable, "-c", program, FILE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate()[0] == "saved after SIGTERM\n"
    assert process.returncode == 0
