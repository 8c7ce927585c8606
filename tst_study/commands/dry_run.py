"""What `tst-study train --dry-run` prints: the resolved config and what it would cost."""

from __future__ import annotations

from pathlib import Path

from tst_study.config import Config, to_toml
from tst_study.configuration.phase_plan import plan_phases
from tst_study.cost.compute import count_flops, count_parameters
from tst_study.cost.memory import estimate_memory
from tst_study.cost.parallel_layout import check, layout_of, least_ranks
from tst_study.data.run_data import fingerprints, open_stream
from tst_study.errors import UserError
from tst_study.run.identity import fingerprint, run_id
from tst_study.run_record import check_same_run
from tst_study.units import duration


def describe(config: Config, seconds_per_step: float | None = None) -> str:
    """TOML of every key, then, as TOML comments, everything that follows from it."""
    time = [*_time(config, seconds_per_step), *_kernels(config)]
    lines = [*_costs(config), *time, "", *_memory(config)]
    return to_toml(config) + "\n" + "\n".join(f"# {line}".rstrip() for line in lines)


def check_start(config: Config, folder: Path | None, processes: int) -> None:
    """Everything that training checks before its first step. Raises its `UserError`."""
    if processes > 1 and config.execution.parallel != "auto":
        check(config, processes)
    data = fingerprints(config)
    open_stream(config)
    if folder is not None:
        check_same_run(folder, fingerprint(config, data))
    if config.initial_weights is not None:
        from tst_study.huggingface.weights import initial_weights

        initial_weights(config)
    if config.execution.device == "cuda" or config.execution.kernels == "te":
        from tst_study.megatron.engine_layers import with_kernels
        from tst_study.megatron.process_groups import choose_device

        with_kernels(config, choose_device(config.execution))


def _costs(config: Config) -> list[str]:
    plan, parameters = plan_phases(config), count_parameters(config.model)
    flops = count_flops(config)
    lines = [f"run                     {_run_id(config)}", "", "parameters"]
    lines += [_row(kind, f"{number:,}") for kind, number in parameters.as_dict().items()]
    lines += [
        "",
        "phases                  steps        FLOPs   raw tokens",
        _phase("superposition", plan.superposed_steps, flops.superposition, _read(config)),
        _phase(
            "recovery",
            plan.steps - plan.superposed_steps,
            flops.recovery,
            plan.raw_tokens(plan.steps) - _read(config),
        ),
        _phase("total", plan.steps, flops.total, plan.raw_tokens(plan.steps)),
        "",
        _row("FLOPs per step", f"{flops.per_step:.4g}, the same in both phases"),
        _row("bag sums per step", f"{flops.bag_sum_per_step:.4g} FLOPs more while superposed"),
        _row("latent tokens", f"{plan.latent_tokens(plan.steps):,}"),
        _row("raw tokens", f"{plan.raw_tokens(plan.steps):,}"),
        _row("data multiplier", f"{plan.data_multiplier:.4g} = 1 + r(s - 1)"),
    ]
    return lines + _epochs(config)


def _epochs(config: Config) -> list[str]:
    try:
        stream = open_stream(config)
    except UserError:
        return []  # said with the run's id
    read = f"{stream.epochs(config.schedule.last_step):.3g} times"
    tokens = sum(corpus.file.token_count for corpus in stream.corpora)
    several = len(stream.corpora) > 1
    of = f"{'the corpus read most; all have' if several else 'the text has'} {tokens:,} tokens"
    return [_row("text is read", f"{read} ({of})")]


def _time(config: Config, seconds_per_step: float | None) -> list[str]:
    if seconds_per_step is None:
        return [_row("time", "not timed; --dry-run --time trains a few steps to estimate it")]
    whole = duration(seconds_per_step * config.schedule.last_step)
    each = f"{seconds_per_step:.3g} s per step on this machine, without evaluations"
    return [_row("time", f"about {whole} ({each})")]


def _kernels(config: Config) -> list[str]:
    if config.execution.kernels == "torch":
        return []
    said = "experimental: layers on TransformerEngine were never run (docs/gpu.md)"
    return [_row("kernels", said)]


def _memory(config: Config) -> list[str]:
    if config.execution.parallel == "auto":
        return ["memory of one rank       depends on the layout, which is chosen at the start"]
    ranks = least_ranks(layout_of(config))
    check(config, ranks)
    memory = estimate_memory(config, ranks, on_gpu=config.execution.device == "cuda")
    title = f"memory of one of {ranks} ranks" if ranks > 1 else "memory of one rank"
    rows = [_row(kind, _bytes(size)) for kind, size in memory.as_dict().items()]
    return [f"{title} (estimate)", *rows]


def _read(config: Config) -> int:
    plan = plan_phases(config)
    return plan.raw_tokens(plan.superposed_steps)


def _row(name: str, value: str) -> str:
    return f"  {name:<22}{value}"


def _phase(name: str, steps: int, flops: int, raw_tokens: int) -> str:
    return f"  {name:<15}{steps:>12,} {flops:>12.4g} {raw_tokens:>12,}"


def _bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:,.1f} GiB"


def _run_id(config: Config) -> str:
    try:
        return run_id(config, fingerprint(config, fingerprints(config)))
    except UserError as error:
        return f"no id yet: {error}"
