"""A real Slurm of one node, from Debian's packages, unpacked into a folder: nothing of the machine is changed."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.recipes.test_suite_runs import wait_for

PACKAGES = [
    "libhwloc15",
    "liblua5.1-0",
    "libmunge2",
    "munge",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "slurmctld",
    "slurmd",
]
# A job of the partition "high" preempts those of "low", which have a minute to end.
CONFIG = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=off
"""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def one_node_slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Starts munged, slurmctld and slurmd; yields the environment in which sbatch finds them."""
    (folder / "packages").mkdir()
    subprocess.run(["apt-get", "download", *PACKAGES], cwd=folder / "packages", check=True, capture_output=True)
    for package in (folder / "packages").glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder], check=True)
    (libraries,) = folder.glob("usr/lib/*/slurm-wlm")
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(
        CONFIG.format(
            host=host,
            user=subprocess.check_output(["id", "-un"], text=True).strip(),
            folder=folder,
            plugins=libraries,
            ports=free_ports(2),
            cpus=os.cpu_count(),
        )
    )
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{libraries}:{libraries.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "PATH": f"{folder}/usr/bin:{os.environ['PATH']}",
        "SLURM_CONF": str(folder / "slurm.conf"),
    }
    munge = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("key-file", "socket", "seed-file")]
    daemons = [
        ["munged", "--foreground", "--force", *munge, f"--pid-file={folder}/munge.pid"],
        ["slurmctld-wlm", "-D"],
        ["slurmd-wlm", "-D", "-d", f"{folder}/usr/sbin/slurmstepd-wlm"],
    ]
    with contextlib.ExitStack() as stack:
        for name, *options in daemons:
            log = stack.enter_context(open(folder / f"{name}.log", "wb"))
            command = [folder / "usr" / "sbin" / name, *options]
            daemon = subprocess.Popen(command, env=env, stdout=log, stderr=log)
            stack.callback(daemon.wait)
            stack.callback(daemon.terminate)
            if name == "munged":
                wait_for((folder / "munge.socket").exists)
        sinfo = ["sinfo", "--noheader", "--format=%T"]
        wait_for(lambda: "idle" in subprocess.run(sinfo, env=env, capture_output=True, text=True).stdout)
        yield env
