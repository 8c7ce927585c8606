"""One array of runs: written down before `sbatch` is called, so that nobody's death loses it.

`<study>/slurm/<id>/` holds `intent.json`, `script.sh`, `runs`, what `sbatch` answered in
`job.json`, and the output of tasks that died before their run had a log. The id is the job's
comment: whoever comes next finds the jobs of a submission whose `job.json` was never written.
"""

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from tst_study.atomic_files import write_json
from tst_study.errors import UserError
from tst_study.experiments.launcher import Job
from tst_study.experiments.slurm.commands import SlurmError, call
from tst_study.experiments.slurm.jobs import MARK, Key, in_the_queue

FOLDER = "slurm"
COLLECT, REST = "collect", "submit-rest"
SMALL = (COLLECT, REST)
"""In the place of a run id: small jobs that train nothing."""
RUNS = "runs"
"""A run id per line, in the order of the array: what the batch script reads of a submission."""


@dataclass(frozen=True)
class Submission:
    id: str
    name: str
    """Of the job: equal for equal lists of runs, so that `singleton` keeps two submitters apart."""
    runs: tuple[str, ...]
    """Run ids, in the order of the array, or the one name of a small job."""
    code: str
    """Folder of the code that the jobs run."""
    created: float
    dependency: str = ""

    @property
    def comment(self) -> str:
        """Of its jobs, by which they are known."""
        return f"{MARK}{self.id}"

    def folder(self, root: Path) -> Path:
        return root / FOLDER / self.id

    def job_id(self, root: Path) -> str | None:
        """What `sbatch` answered; None where nobody lived to write it down."""
        try:
            answer: dict[str, str] = json.loads((self.folder(root) / "job.json").read_bytes())
        except FileNotFoundError:
            return None
        return answer["job"]


def new(root: Path, what: str, runs: Sequence[str], code: Path, dependency: str = "") -> Submission:
    """`what`: added to the study's name in the job's."""
    now = time.time()
    id = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{secrets.token_hex(3)}"
    # Two checkouts have studies of one name; a job must not wait for another's.
    digest = sha256("\n".join([str(root.absolute()), *runs]).encode()).hexdigest()[:8]
    return Submission(id, f"{root.name}{what}-{digest}", tuple(runs), str(code), now, dependency)


def submit(one: Submission, root: Path, script: str, lock: int) -> str:
    """Write the intent, call `sbatch`, write its answer; returns the job id. Raises `SlurmError`.

    `lock`: descriptor of the study's lock, which `sbatch` keeps open too, so that a submitter who
    is killed in between does not let the next one in before the answer is there to be found.
    """
    folder = one.folder(root)
    folder.mkdir(parents=True)
    (folder / "script.sh").write_text(script, encoding="utf8")
    (folder / RUNS).write_text("".join(f"{run}\n" for run in one.runs), encoding="utf8")
    write_json(folder / "intent.json", asdict(one))
    try:
        said = call("sbatch", "--parsable", str(folder / "script.sh"), pass_fds=(lock,))
        job = said.strip().partition(";")[0]
    except SlurmError as error:
        # It may have been accepted all the same: only the answer was lost.
        job = _array_of(one, in_the_queue())
        if not job:
            write_json(folder / "job.json", {"job": "", "refused": str(error)})
            raise
    write_json(folder / "job.json", {"job": job})
    return job


def all_of(root: Path) -> list[Submission]:
    """Every submission of a study, oldest first. Raises `UserError` where one is damaged."""
    found = []
    for path in (root / FOLDER).glob("*/intent.json"):
        try:
            values = json.loads(path.read_bytes())
            one = Submission(**{**values, "runs": tuple(values["runs"])})
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}: damaged ({error}); move {path.parent} away") from None
        if one.id != path.parent.name:  # an id becomes a path, so that it must be one of ours
            raise UserError(f"{path}: id {one.id!r} is not its folder's name; move it away")
        found.append(one)
    return sorted(found, key=lambda one: one.created)


def tasks(root: Path) -> Iterator[tuple[Submission, str, Job]]:
    """Every submission of a study, oldest first, with each of its runs and the job of that. Slurm
    is asked only where there is any; a job that it no longer knows has ended.

    Those whose submitter died after `sbatch` are adopted: their answer is written down. Raises
    `SlurmError` where nobody answers.
    """
    submissions = all_of(root)
    known = in_the_queue() if submissions else {}
    for one in submissions:
        id = one.job_id(root)
        if id is None and (id := _array_of(one, known)):
            write_json(one.folder(root) / "job.json", {"job": id})
        for place, run in enumerate(one.runs):
            job = known.get((one.id, place))
            if job is not None or id:
                yield one, run, job or Job(f"{id}_{place}", "ended")


def known_jobs(root: Path) -> dict[str, Job]:
    """The job of each run that ever had one: an active one, else that of its last submission.
    Raises `SlurmError` where nobody answers."""
    jobs: dict[str, Job] = {}
    for _, run, job in tasks(root):
        if run not in jobs or job.is_active or not jobs[run].is_active:
            jobs[run] = job
    return jobs


def _array_of(one: Submission, known: dict[Key, Job]) -> str:
    """The id of its array as the queue has it; empty where it is not there."""
    there = (job.id for (name, _), job in known.items() if name == one.id)
    return next(there, "").partition("_")[0]
