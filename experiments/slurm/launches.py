"""What `launch.sh` noted of a run's launches since it was last submitted."""

from dataclasses import dataclass
from pathlib import Path

from experiments.run_process import Exit


@dataclass(frozen=True)
class Launch:
    outcome: str
    """An agreed status (`run_process.Exit`); `crash`; `set-up`; `limit`, when its time was up and
    no rank had stopped; `early`, when it was told to stop before its first step."""
    brought: bool
    """Whether it left a new checkpoint."""
    checkpoint: str
    """From which the next one goes on."""
    words: str


def read(folder: Path) -> list[Launch]:
    """Every launch that was not the last and did not end with its node."""
    try:
        lines = (folder / "job" / "launches").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        _, outcome, before, after, _, words = (*line.split(" ", 5), *[""] * 6)[:6]
        found.append(Launch(outcome, before != after, after, words))
    return found


def start_up(folder: Path) -> int | None:
    """Seconds that a launch took to start up, of those that were told to stop before their first
    step; None where there was none."""
    seconds = [one.words.split(" ")[0] for one in read(folder) if one.outcome == "early"]
    return max(map(int, seconds), default=None)


def forget(folder: Path) -> None:
    """The run is submitted anew: nothing counts against it or a node."""
    for name in ("launches", "avoided"):
        (folder / "job" / name).unlink(missing_ok=True)


def remark(folder: Path) -> str:
    """What of it a person should know; nothing where all went well."""
    launches = [one for one in read(folder) if one.outcome != str(Exit.HELD.value)]
    crashes = [one for one in launches if one.outcome == "crash"]
    said = []
    if launches and launches[-1].outcome == "set-up":
        said.append(f"set-up failed: {launches[-1].words}")
    elif launches and launches[-1].outcome == "early":
        said.append(
            f"no time left after a start-up of {launches[-1].words}: more time in [resources]"
        )
    elif launches and launches[-1].outcome == "limit":
        said.append(f"stopped by the limit, resumed from step {launches[-1].checkpoint}")
    elif crashes:
        said.append(f"crashed {len(crashes)} times, last {crashes[-1].words}")
    idle = 0
    for one in launches:
        idle = 0 if one.brought else idle + 1
    if idle and not said:
        said.append(f"launches in a row without a new checkpoint: {idle}")
    avoided = folder / "job" / "avoided"
    if avoided.exists():
        said.append(f"avoids {avoided.read_text().strip()}")
    return "; ".join(said)
