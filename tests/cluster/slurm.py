"""A Slurm of two nodes with eight pretended GPUs each, on this machine, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
SECONDS_TO_START = 60.0
CONFIGURATION = """\
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,sched_min_interval=0,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
KillWait=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} {node}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} {node}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
NODE = (
    "CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=1000 Gres=gpu:8"
)
# Slurm wants devices for GPUs; nobody opens these.
GPUS = "NodeName=n[0-1] Name=gpu File=/dev/tty[0-7]\n"


class Unavailable(Exception):
    """Why there is no Slurm here."""


def install() -> None:
    """Debian's packages, if some are missing and we may."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if os.geteuid() != 0:
        raise Unavailable("only root can start Slurm's daemons")
    if missing and shutil.which("apt-get") is None:
        raise Unavailable(f"{', '.join(missing)} not found, and no apt-get to install it with")
    if missing:
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "check": False}
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "--quiet=2"], **quiet)
        command = ["apt-get", "install", "--yes", "--no-install-recommends", *PACKAGES]
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, **quiet)
        if done.returncode != 0:
            raise Unavailable(f"apt-get can't install Slurm: {done.stderr.strip()[-200:]}")
    for device in range(8):
        if not Path(f"/dev/tty{device}").is_char_device():
            raise Unavailable(f"/dev/tty{device} is not there to stand for a GPU")


@contextmanager
def running_slurm(folder: Path):
    """Its daemons, children of this process, until the end; yields the environment to use it in."""
    host, ports = socket.gethostname().split(".")[0], _free_ports(3)
    (folder / "state").mkdir(parents=True)
    folder.chmod(0o755)
    text = CONFIGURATION.format(folder=folder, host=host, ports=ports, node=NODE)
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(GPUS)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
    munge = ["munged", "--foreground", "--force", f"--key-file={key}"]
    munge += [f"--{kind}-file={folder}/munge.{kind}" for kind in ("log", "pid", "seed")]
    munge.append(f"--socket={folder}/munge.socket")
    with ExitStack() as daemons:
        for command in (
            munge,
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D", "-N", "n0"],
            ["slurmd", "-D", "-N", "n1"],
        ):
            daemons.enter_context(_daemon(command, environment, folder))
            if command is munge:
                _wait_for((folder / "munge.socket").exists, "munged")
        _wait_for(
            lambda: set(ask(environment, "sinfo", "-hN", "-o%t").split()) == {"idle"}, "slurmd"
        )
        yield environment
        ask(environment, "scancel", "--user=root", "--signal=KILL", "--full")
        ask(environment, "scancel", "--user=root")
        _wait_for(lambda: not ask(environment, "squeue", "-h"), "the last job")


@contextmanager
def _daemon(command: list[str], environment: dict[str, str], folder: Path):
    with (folder / "daemons.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ask(environment: dict[str, str], *command: str) -> str:
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=False
    ).stdout


def _wait_for(is_there, who: str) -> None:
    limit = time.monotonic() + SECONDS_TO_START
    while not is_there():
        if time.monotonic() > limit:
            raise Unavailable(f"{who} did not come within {SECONDS_TO_START:g} s")
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
