"""Requeues jobs of submitit that were stopped by a signal and have saved."""

from __future__ import annotations

import os
import signal
import subprocess

# The signals that a scheduler sends to a job that will continue later. Ctrl-C and a lost terminal end a job for good.
PREEMPTING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def requeue(exit_code: int | str | None) -> None:
    """Asks submitit to requeue this job if a scheduler stopped it; then this process ends here.

    Call it with the exit code of a run that has saved. It returns if the job is not to be requeued: outside of
    submitit, after another exit code, and if the job was cancelled.
    """
    if "SUBMITIT_EXECUTOR" not in os.environ or exit_code not in [128 + number for number in PREEMPTING]:
        return
    from submitit import JobEnvironment

    preempted = signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]
    # While a run is active, catch_stop_signals handles this signal. Now submitit's own handler is in place again.
    if callable(signal.getsignal(preempted)) and not is_cancelled():
        signal.raise_signal(preempted)


def is_cancelled() -> bool:
    """Tells whether the job was cancelled: scancel sends the same SIGTERM as preemption does."""
    if (job_id := os.environ.get("SLURM_JOB_ID")) is None:
        return False
    command = ["scontrol", "--oneliner", "show", "job", job_id]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "JobState=COMPLETING" in said or "JobState=CANCELLED" in said
