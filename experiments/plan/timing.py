"""A few steps of a run, timed on this machine: a plan's hours before any run has ended."""

from statistics import median
from tempfile import TemporaryDirectory

from tst_study import run_record
from tst_study.config import Config, from_dict, to_dict

WARM_UP, TIMED = 3, 9


def seconds_per_step(config: Config) -> float:
    """Median of some steps, trained into a folder that is thrown away; a superposed step costs the
    same. Raises `UserError` where the run could not be trained here."""
    from tst_study.train import train

    values = to_dict(config)
    values["schedule"] |= {"steps": WARM_UP + TIMED, "warmup_steps": 0, "stop_after": None}
    values["superposition"] = {}
    values["data"]["validation_tokens"] = 2 * config.batch.sequence_length
    values["execution"] |= {"log_every": 1, "keep_steps": [], "fork_from": None}
    values["execution"] |= {"evaluate_every": None, "checkpoint_every": None}
    with TemporaryDirectory() as folder:
        train(from_dict(values), folder, progress=False)
        rows = run_record.read(folder).metrics[WARM_UP:]
    return median(row["step_seconds"] for row in rows)
