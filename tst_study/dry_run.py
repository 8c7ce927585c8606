"""The costs of a run, before it is trained.

`tst-study train --dry-run` makes the checks of a launch (`check_start`), then prints the resolved
config and its costs (`describe`). For the plan of a study, `seconds_per_step` measures the time of
a few real steps.
"""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tst_study.checkpoints.places import checkpoint_steps
from tst_study.checkpoints.trained_run import fork_point
from tst_study.config.identity import fingerprint, run_id
from tst_study.config.phase_plan import plan_phases
from tst_study.config.schema import RIVALS, Config, from_dict, to_dict, to_toml
from tst_study.cost.compute import count_flops, count_parameters, flops_until
from tst_study.cost.memory import estimate_memory
from tst_study.cost.parallel_layout import check, layout_of, least_ranks
from tst_study.cost.prices import Prices, mfu_source
from tst_study.data.run_data import fingerprints, open_stream
from tst_study.data.token_stream import TokenStream
from tst_study.record import reader as run_record
from tst_study.record.reader import check_same_run
from tst_study.text import memory_size

WARM_UP, TIMED = 3, 9
"""Steps that `seconds_per_step` trains before timing, and steps that it times."""


def describe(
    config: Config,
    identity: str,
    stream: TokenStream | None = None,
    prices: Prices | None = None,
    processes: int = 1,
) -> str:
    """Return the config as TOML, followed by comments that give parameters, FLOPs, tokens and
    memory.

    `identity` is the run's id, or says why there is none yet. With `stream` the comments also say
    how many times the text is read, and if `prices` names a device, how many GPU-hours the run
    takes on it and, if a price is given, what they cost.

    Raises `UserError` if the config's layout cannot work for its model or batch.
    """
    lines = [f"run                     {identity}", "", *_costs(config)]
    if stream is not None:
        tokens = sum(corpus.file.token_count for corpus in stream.corpora)
        read = stream.epochs(config.schedule.last_step)
        lines.append(_row("text is read", f"{read:.3g} times ({tokens:,} tokens)"))
    if prices is not None and prices.device:
        lines.append(_row("cost", _gpu_hours(config, prices)))
    lines += ["", *_memory(config, processes, on_gpu=prices is not None and bool(prices.device))]
    return to_toml(config) + "\n" + "\n".join(f"# {line}".rstrip() for line in lines)


def check_start(config: Config, folder: Path | None, processes: int) -> tuple[str, TokenStream]:
    """Make the checks of a training launch that need no device, and return the run's id and its
    token stream.

    The checks are those of the data, of `folder`, and of the shared prefix run that the config
    names, if it names one and `folder` has no checkpoint to resume from. A layout in the config is
    checked only if `processes` is above 1; otherwise torchrun may be meant to start the run, on a
    number of ranks that is not known here.

    Raises `UserError` if a check fails.
    """
    if processes > 1 and config.execution.parallel != "auto":
        check(config, processes)
    data = fingerprints(config)
    digest = fingerprint(config, data)
    stream = open_stream(config)
    if folder is not None:
        check_same_run(folder, digest)
    if folder is None or not checkpoint_steps(folder):  # else training resumes from them
        fork_point(config, data)
    return run_id(config, digest), stream


def seconds_per_step(config: Config) -> float:
    """Train `TIMED` steps of a run in a temporary folder, after `WARM_UP` others, and return their
    median time in seconds.

    The steps are those of the baseline: whole ones, to which superposed ones cost the same. Raises
    `UserError` if the run cannot be trained on this machine.
    """
    from tst_study.train import train

    values = to_dict(config)
    values["schedule"] |= {"steps": WARM_UP + TIMED, "warmup_steps": 0, "stop_after": None}
    values |= {"superposition": {}, **dict.fromkeys(RIVALS)}
    values["data"]["validation_tokens"] = 2 * config.batch.sequence_length
    values["execution"] |= {"log_every": 1, "keep_steps": [], "fork_from": None}
    values["execution"] |= {"evaluate_every": None, "checkpoint_every": None, "track": []}
    with TemporaryDirectory() as folder:
        train(from_dict(values), folder, progress=False)
        rows = run_record.read(folder).metrics[WARM_UP:]
    return median(row["step_seconds"] for row in rows)


def _costs(config: Config) -> list[str]:
    whole, last = plan_phases(config), config.schedule.last_step
    # A shared prefix run ends after `last_step`, before the end of its plan.
    plan = replace(whole, steps=last, superposed_steps=min(whole.superposed_steps, last))
    parameters = count_parameters(config.model)
    flops, raw = count_flops(config), plan.raw_tokens(last)
    first, names = plan.superposed_steps, ("superposition", "recovery")
    per_step = f"{flops.per_step:.4g}, the same in both phases"
    if plan.small_steps:
        first, names = min(plan.small_steps, last), ("small steps", "whole steps")
        until = partial(flops_until, config.model, plan)
        costs = ", then ".join(f"{until(step + 1) - until(step):.4g}" for step in plan.stages)
        equal = f"the total is that of {flops.total / flops.per_step:,.1f} whole steps"
        per_step = f"{costs}; {equal}"
    of_first, read = flops_until(config.model, plan, first), plan.raw_tokens(first)
    return [
        "parameters",
        *(_row(kind, f"{number:,}") for kind, number in asdict(parameters).items()),
        "",
        "phases                  steps        FLOPs   raw tokens",
        _phase(names[0], first, of_first, read),
        _phase(names[1], last - first, flops.total - of_first, raw - read),
        _phase("total", last, flops.total, raw),
        "",
        _row("FLOPs per step", per_step),
        _row("bag sums per step", f"{flops.bag_sum_per_step:.4g} FLOPs more while superposed"),
        _row("latent tokens", f"{plan.latent_tokens(plan.steps):,}"),
        _row("raw tokens", f"{raw:,}"),
        _row("data multiplier", f"{plan.data_multiplier:.4g}, raw tokens over latent tokens"),
    ]


def _gpu_hours(config: Config, prices: Prices) -> str:
    experts = config.model.experts is not None
    hours = prices.gpu_hours(count_flops(config).total, experts=experts)
    mfus = prices.mfus(experts=experts)
    if hours is None or mfus is None:
        return prices.unknown()
    return f"{prices.in_words(hours)}, at {mfu_source(mfus)}"


def _memory(config: Config, processes: int, *, on_gpu: bool) -> list[str]:
    if config.execution.parallel == "auto":
        return ["memory of one rank      depends on the layout, which is chosen at the start"]
    ranks = max(processes, least_ranks(layout_of(config)))
    check(config, ranks)
    memory = estimate_memory(config, ranks, on_gpu=on_gpu or config.execution.device == "cuda")
    title = f"memory of one of {ranks} ranks" if ranks > 1 else "memory of one rank"
    rows = [_row(kind, memory_size(size)) for kind, size in asdict(memory).items()]
    return [f"{title} (estimate)", *rows]


def _row(name: str, value: str) -> str:
    return f"  {name:<22}{value}"


def _phase(name: str, steps: int, flops: int, raw_tokens: int) -> str:
    return f"  {name:<15}{steps:>12,} {flops:>12.4g} {raw_tokens:>12,}"
