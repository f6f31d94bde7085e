"""Jobs of submitit that a signal stopped: once they have saved, they go back into the queue."""

from __future__ import annotations

import os
import signal
import subprocess

# What a scheduler sends to a job that it wants to go on later. Ctrl-C and a lost terminal end a job for good.
PREEMPTING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def requeue(exit_code: int | str | None) -> None:
    """Has submitit put this job back into its queue, if a scheduler stopped it; then this process ends here.

    Call it with the exit code of a run that has saved. It returns where there is nothing to put back: outside of
    submitit, after another end, and if somebody cancels the job.
    """
    if "SUBMITIT_EXECUTOR" not in os.environ or exit_code not in [128 + number for number in PREEMPTING]:
        return
    from submitit import JobEnvironment

    preempted = signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]
    # While it runs, catch_stop_signals has this signal. Now submitit has it again, and acts on no other.
    if callable(signal.getsignal(preempted)) and not is_cancelled():
        signal.raise_signal(preempted)


def is_cancelled() -> bool:
    """Tells whether Slurm ends this job on purpose: scancel sends the same SIGTERM as preemption does."""
    if (job_id := os.environ.get("SLURM_JOB_ID")) is None:
        return False
    command = ["scontrol", "--oneliner", "show", "job", job_id]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "JobState=COMPLETING" in said or "JobState=CANCELLED" in said
