"""`run.json` of a run: everything about it that is known before its first step."""

from dataclasses import asdict
from typing import Any

from tst_study.config import Config, to_dict
from tst_study.configuration.phase_plan import plan_phases
from tst_study.cost.compute import count_flops, count_parameters
from tst_study.run.identity import fingerprint, run_id
from tst_study.run.identity_form import SCHEMA_VERSION
from tst_study.run_record import RunHeader


def header_of(config: Config, data: dict[str, Any]) -> RunHeader:
    """`data`: what `data.run_data.fingerprints` returns."""
    plan = plan_phases(config)
    end = config.schedule.last_step
    digest = fingerprint(config, data)
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id(config, digest),
        "fingerprint": digest,
        "study": config.study,
        "name": config.name,
        "role": config.role,
        "config": to_dict(config),
        "parameters": asdict(count_parameters(config.model)),
        "flops": asdict(count_flops(config)),
        "plan": {
            **asdict(plan),
            "step_ratio": plan.step_ratio,
            "data_multiplier": plan.data_multiplier,
        },
        "raw_tokens": plan.raw_tokens(end),
        "latent_tokens": plan.latent_tokens(end),
        "data": data,
        "unique_raw_tokens": sum(corpus["tokens"] for corpus in data["corpora"]),
    }
