"""A cluster with accounts, by which Slurm limits its users, and on which Slurm itself ends jobs
that take too much memory. The database of the accounts has a socket below the cluster's folder."""

import getpass
import os

from tests.slurm.cluster import LIBRARIES, Cluster, _wait_for
from tests.slurm.test_launching import wait_until
from tst_study.process.local_ranks import free_port

USER = getpass.getuser()
LIMITS = f"""
add account team
add account few
add qos short MaxWall=30 MaxTRESPerJob=cpu=4,node=1,mem=2G Flags=DenyOnLimit
add qos patient MaxWall=30
add qos three MaxSubmitJobsPerUser=3
add user {USER} account=team qos=normal,short,patient,three
add user {USER} account=few MaxSubmitJobs=2
modify user {USER} set DefaultAccount=team
"""
"""Without the flag, what is beyond the limits of a QOS waits for ever."""


class LimitedCluster(Cluster):
    """With the limits above, and small ones of its own on arrays and on all jobs."""

    def _settings(self) -> dict[str, object]:
        self._account_port = free_port()
        return {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStoragePort": self._account_port,
            "AccountingStoragePass": f"{self.folder}/munge/socket",
            "AccountingStorageEnforce": "limits,qos",
            "EnforcePartLimits": "ALL",
            "MaxArraySize": 5,
            "MaxJobCount": 50,
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/linux",
            "JobAcctGatherFrequency": 1,
            "JobAcctGatherParams": "OverMemoryKill",
        }

    def start_controller(self) -> None:
        """After the accounts, which it reads as it starts."""
        folder = self.folder / "database"
        folder.mkdir(mode=0o700)
        self.environment["MYSQL_UNIX_PORT"] = f"{folder}/socket"
        options = [
            *("--no-defaults", "--skip-networking", "--skip-grant-tables", f"--user={USER}"),
            *(f"--datadir={folder}", f"--tmpdir={folder}", f"--socket={folder}/socket"),
            *("--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=0"),
        ]
        tables = (self.prefix / "usr/share/mysql/mysql_system_tables.sql").read_text()
        self.run(
            *(f"{self.prefix}/usr/sbin/mariadbd", *options, "--bootstrap"),
            words=f"create database mysql;\nuse mysql;\n{tables}",
        )
        self._spawn("mariadbd", *options)
        _wait_for(folder / "socket")
        configuration = self.folder / "slurmdbd.conf"
        configuration.touch(mode=0o600)
        values = {
            "DbdHost": os.uname().nodename.split(".")[0],
            "DbdAddr": "127.0.0.1",
            "DbdPort": self._account_port,
            "CommunicationParameters": "NoInAddrAny",
            "SlurmUser": USER,
            "AuthInfo": f"socket={self.folder}/munge/socket",
            "PluginDir": f"{self.prefix}/{LIBRARIES}/slurm-wlm",
            "PidFile": f"{self.folder}/slurmdbd.pid",
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "localhost",
        }
        configuration.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        self._spawn("slurmdbd", "-D")
        wait_until(lambda: "Adding" in self.run("sacctmgr", "-i", "add", "cluster", "test"), 60.0)
        self.run("sacctmgr", "-i", words=LIMITS)
        super().start_controller()
