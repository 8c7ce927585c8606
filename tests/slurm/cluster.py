"""A real Slurm on this machine for the length of a test session: no root, nothing installed.

Its programs are Debian's packages, unpacked into a folder of their own. munged,
slurmctld and one slurmd per virtual node run beside each other and listen on the loopback alone.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.slurm.packages import LIBRARIES, programs
from tst_study.process.local_ranks import free_port

CPUS, GPUS, MEMORY = 8, 4, 16_000
START_SECONDS = 30
CGROUPS = Path("/sys/fs/cgroup/memory")
LIMITS_MEMORY = os.access(CGROUPS / "cgroup.procs", os.W_OK)
"""Whether this process may limit the memory of jobs, as the root of a system with control groups of
version 1 may."""


class Cluster:
    """Four virtual nodes `127.0.0.1` … : submitit takes the first one's name for an address.

    Partitions: `main`; `low`, from which `high` takes nodes after a warning.
    """

    def __init__(self) -> None:
        """Started. Raises `RuntimeError`."""
        # Short: Slurm's sockets lie below.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        # Other users, too, may call them there.
        self.prefix = shutil.copytree(programs(), self.folder / "programs", symlinks=True)
        self.nodes = [f"127.0.0.{number + 1}" for number in range(4)]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = [free_port() for _ in ("slurmctld", *self.nodes)]
        libraries = f"{self.prefix}/{LIBRARIES}:{self.prefix}/{LIBRARIES}/slurm-wlm"
        self.environment = {
            "PATH": f"{self.prefix}/usr/bin:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": libraries,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }

        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        for name in ("state", "spool", "log", "munge", "devices"):
            (self.folder / name).mkdir()
        self._start_munge()
        self._write_configuration()
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        deadline = time.monotonic() + START_SECONDS
        while self.idle_nodes() < len(self.nodes):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no cluster after {START_SECONDS} s: {self._last_words()}")
            time.sleep(0.1)

    def start_controller(self) -> None:
        is_first = not any((self.folder / "state").iterdir())
        self._spawn("slurmctld", "-D", *["-i"] * is_first)

    def start_node(self, node: str) -> None:
        (self.folder / "spool" / node).mkdir(exist_ok=True)
        stepd = self.prefix / "usr/sbin/slurmstepd"
        self._spawn("slurmd", "-D", "-N", node, "-d", str(stepd), name=node)

    def kill(self, name: str) -> None:
        """SIGKILL a daemon by its name, `slurmctld` or a node's."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def kill_node(self, node: str) -> None:
        """A node dies with everything on it: its slurmd and what its jobs run."""
        self.kill(node)
        while processes := _processes_of(self.folder, node):  # also what these had just begun
            for process in processes:
                _signal(process, signal.SIGKILL)

    def kill_tasks(self, job: str, of: bytes = b"", but: bytes = b"\0none\0") -> int:
        """SIGKILL what a job `123_4` runs, or those of its processes whose command lines hold one
        text and not another; returns how many processes that were."""
        array, _, place = job.partition("_")
        wanted = {f"SLURM_ARRAY_JOB_ID={array}".encode(), f"SLURM_ARRAY_TASK_ID={place}".encode()}
        killed = 0
        for process in _processes_of(self.folder):
            with suppress(OSError):
                variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
                words = Path(f"/proc/{process}/cmdline").read_bytes()
                if wanted <= set(variables) and of in words and but not in words:
                    os.kill(process, signal.SIGKILL)
                    killed += 1
        return killed

    def stop(self) -> None:
        for name in list(self._processes):
            self.kill(name)
        for process in _processes_of(self.folder):
            _signal(process, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder, *_ in os.walk(CGROUPS, topdown=False):
            if "/slurm_127.0.0." in folder:
                with suppress(OSError):  # in use by a cluster beside this one
                    os.rmdir(folder)

    def run(self, *command: str, words: str = "") -> str:
        return self._called(*command, words=words).stdout.strip()

    def control(self, *words: str) -> None:
        """Tell the controller, which may be too busy for an answer, until it has heard."""
        deadline = time.monotonic() + START_SECONDS
        while (done := self._called("scontrol", *words)).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError(f"scontrol {' '.join(words)}: {done.stderr.strip()}")
            time.sleep(1.0)

    def _called(self, *command: str, words: str = "") -> "subprocess.CompletedProcess[str]":
        environment = os.environ | self.environment
        return subprocess.run(command, env=environment, input=words, capture_output=True, text=True)

    def idle_nodes(self) -> int:
        out = self.run("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N")
        return len(out.splitlines())

    def _spawn(self, program: str, *arguments: str, name: str | None = None) -> None:
        with open(self.folder / "log" / f"{name or program}.out", "ab") as log:
            self._processes[name or program] = subprocess.Popen(
                [self.prefix / "usr/sbin" / program, *arguments],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
            )

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        folder.chmod(0o711)
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)
        files = (f"--{name}-file={folder}/{name}" for name in ("key", "pid", "log", "seed"))
        self._spawn("munged", "--foreground", "--force", f"--socket={folder}/socket", *files)
        _wait_for(folder / "socket")

    def _write_configuration(self) -> None:
        for gpu in range(GPUS):  # Slurm wants a character device, and numbers it by its name
            (self.folder / "devices" / f"gpu{gpu}").symlink_to("/dev/null")
        gpus = f"Name=gpu Type=a100 File={self.folder}/devices/gpu[0-{GPUS - 1}]\n"
        (self.folder / "gres.conf").write_text(gpus)
        limits = "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\n"
        (self.folder / "cgroup.conf").write_text(limits)
        controller, *ports = self._ports
        host = socket.gethostname().split(".")[0]
        values = {
            "ClusterName": "test",
            # Ids of one cluster are not those of the next.
            "FirstJobId": str(int(time.time()) % 60_000_000 + 1),
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": controller,
            "SlurmUser": getpass.getuser(),
            "SlurmdUser": getpass.getuser(),
            # How long a requeued job waits, too.
            "AuthInfo": f"socket={self.folder}/munge/socket,cred_expire=5",
            "PluginDir": f"{self.prefix}/{LIBRARIES}/slurm-wlm",
            "StateSaveLocation": f"{self.folder}/state",
            "SlurmdSpoolDir": f"{self.folder}/spool/%n",
            "SlurmctldPidFile": f"{self.folder}/slurmctld.pid",
            "SlurmdPidFile": f"{self.folder}/spool/%n.pid",
            "SlurmctldLogFile": f"{self.folder}/log/slurmctld.log",
            "SlurmdLogFile": f"{self.folder}/log/%n.log",
            # CPUs and GPUs are book-keeping: nothing is bound or limited but memory.
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": f"task/{'cgroup' if LIMITS_MEMORY else 'none'}",
            "SlurmdParameters": "config_overrides",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core_Memory",
            "DefMemPerCPU": 1000,
            "GresTypes": "gpu",
            "CommunicationParameters": "NoInAddrAny,NoCtldInAddrAny",
            "PropagateResourceLimits": "NONE",
            "ReturnToService": 2,
            "SchedulerParameters": (
                "batch_sched_delay=0,sched_min_interval=0,bf_interval=1,sched_interval=1"
            ),
            "SlurmctldTimeout": 30,
            "SlurmdTimeout": 5,
            # Slurm has 30. For as long, a job that goes back into the queue may say what it avoids.
            "KillWait": 10,
            "PreemptType": "preempt/partition_prio",
            "PreemptMode": "REQUEUE",
            "SlurmctldParameters": "preempt_send_user_signal",
        }
        lines = [f"{key}={value}" for key, value in {**values, **self._settings()}.items()]
        lines += [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} "
            f"Sockets=1 CoresPerSocket={CPUS} ThreadsPerCore=1 RealMemory={MEMORY} "
            f"Gres=gpu:a100:{GPUS} State=UNKNOWN"
            for node, port in zip(self.nodes, ports, strict=True)
        ]
        partitions = {
            "main": "5 PreemptMode=OFF Default=YES",
            "low": "1 PreemptMode=REQUEUE GraceTime=20",
            "high": "9 PreemptMode=OFF",
            # As the example profiles call them.
            **dict.fromkeys(("gpu", "batch"), "5 PreemptMode=OFF"),
            "small": "5 PreemptMode=OFF MaxTime=20 MaxNodes=2 MaxMemPerNode=2000",
        }
        lines += [
            f"PartitionName={name} Nodes=ALL PriorityTier={how}" for name, how in partitions.items()
        ]
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")

    def _settings(self) -> dict[str, object]:
        """What else the configuration says, or says otherwise."""
        return {}

    def _last_words(self) -> str:
        texts = [path.read_text(errors="replace") for path in (self.folder / "log").iterdir()]
        return " | ".join(text.strip().splitlines()[-1] for text in texts if text.strip())


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path}: not there after {START_SECONDS} s")
        time.sleep(0.02)


def _processes_of(folder: Path, node: str | None = None) -> list[int]:
    """Jobs of this cluster and their keepers, of one node or of all; never told by a name.

    A job knows its cluster's configuration and its node by its environment; a keeper (slurmstepd)
    has written its title over that, but holds its node's log open.
    """
    log = f"{folder}/log/{node}.log" if node else f"{folder}/"
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            is_ours = f"SLURM_CONF={folder}/slurm.conf".encode() in variables
            is_there = node is None or f"SLURMD_NODENAME={node}".encode() in variables
            is_job = any(variable.startswith(b"SLURM_JOB_ID=") for variable in variables)
            if (is_ours and is_job and is_there) or any(
                os.readlink(descriptor).startswith(log) for descriptor in (entry / "fd").iterdir()
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _signal(process: int, number: signal.Signals) -> None:
    with suppress(OSError):
        os.kill(process, number)
