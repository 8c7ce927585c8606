"""What `tst-study plan` prints: every run of a study, its cost and its state."""

from __future__ import annotations

from pathlib import Path

from experiments.planner import PlannedRun, Planner
from experiments.status import row, totals
from experiments.study import Study
from tst_study.compute_cost import count_flops
from tst_study.errors import UserError
from tst_study.phase_plan import plan_phases


def lines(study: Study, root: Path) -> list[str]:
    """Raises `UserError` where a corpus is not prepared: identity is of data, not of paths."""
    planner = Planner(study, root)
    missing = [str(corpus.folder) for corpus in study.corpora if not corpus.folder.is_dir()]
    if missing:
        raise UserError(
            f"{', '.join(missing)}: not prepared yet; `tst-study submit {study.name} --scale "
            f"{study.scale}` prepares what a study reads"
        )
    decided = planner.decided()
    known = {run.fingerprint for run in decided}
    open_ = [run for run in planner.whole() if run.fingerprint not in known]
    width = max(len(run.run_id) for run in [*decided, *open_])
    text = [study.title, study.claims, ""]
    text.append(f"{'run':<{width}} {'steps':>7} {'FLOPs':>9} {'tokens':>12}  state")
    text += [_line(run, width, row(run.folder).state) for run in decided]
    text += [_line(run, width, "not decided: rate not chosen yet") for run in open_]
    runs = [*decided, *open_]
    total = sum(count_flops(run.config).total for run in runs)
    text += ["", f"{len(runs)} runs, {total:.3g} FLOPs; {totals(row(r.folder) for r in runs)}"]
    return text


def _line(run: PlannedRun, width: int, state: str) -> str:
    plan = plan_phases(run.config)
    return (
        f"{run.run_id:<{width}} {plan.steps:>7,} {count_flops(run.config).total:>9.3g} "
        f"{plan.raw_tokens(plan.steps):>12,}  {state}"
    )
