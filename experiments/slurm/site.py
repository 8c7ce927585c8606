"""A first profile for the cluster that is seen from here."""

import re

from experiments.slurm.commands import call


def template() -> str:
    """Lines of a `slurm.toml`: the partition that jobs get by default, or one with GPUs, and a
    whole node of it for each run. Raises `SlurmError`."""
    rows = [
        line.split("|")
        for line in call("sinfo", "--noheader", "--format=%P|%G|%c|%l").splitlines()
        if line.count("|") == 3
    ]
    rows.sort(key=lambda row: ("gpu" not in row[1], not row[0].endswith("*")))
    name, devices, cpus, limit = rows[0] if rows else ("", "", "1", "")
    gpus = re.search(r"gpu:(?:([a-zA-Z]\w*):)?(\d+)", devices)
    ranks = int(gpus[2]) if gpus else 1
    lines = ["# slurm.toml: docs/slurm.md has every key", '# account = "…"', "", "[resources]"]
    others = ", ".join(dict.fromkeys(row[0].rstrip("*") for row in rows))
    lines.append(f'partition = "{name.rstrip("*")}"  # there are: {others}')
    lines.append(f"tasks_per_node = {ranks}  # ranks of a run")
    if gpus:
        lines.append(f"gpus_per_node = {ranks}")
        lines += [f'gpu_type = "{gpus[1]}"'] if gpus[1] else []
    lines.append(f"cpus_per_task = {max(1, int(re.sub(r'[^0-9]', '', cpus) or 1) // ranks)}")
    lines.append(f'time = "{limit if limit and limit != "infinite" else "24:00:00"}"')
    return "\n".join(lines)
