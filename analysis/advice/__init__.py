"""Should I use it? `planned_run` says what is known near a planned run and what gain to expect;
`advise` puts it beside costs, rivals and a cheaper test. What cannot be meant is refused here,
before pandas is loaded."""

from __future__ import annotations

import math

from tst_study.cost.devices import DEVICES, Device, device_named
from tst_study.errors import UserError, one_of
from tst_study.text import big


def check(device: str | None, **numbers: float | None) -> None:
    """Refuse arguments of `advise` that cannot be meant: raises `UserError`."""
    given = {name: value for name, value in numbers.items() if value is not None}
    for name, value in given.items():
        if not 0 < value < math.inf:
            raise UserError(f"--{name} {value!r}: give a number above 0")
    if given.get("active", 0) > given.get("params", math.inf):
        more = big(given["active"]), big(given["params"])
        raise UserError("--active {}: more than the {} of --params".format(*more))
    if device is None and given.keys() & {"gpus", "price"}:
        raise UserError("--gpus and --price: name the --device, too, such as H100")
    if device is not None:
        known_device(device)


def known_device(name: str) -> Device:
    """Find a GPU by its name. Raises `UserError` for one whose data sheet is not known here."""
    listed = {device.name: device for device in DEVICES}
    return device_named(name) or listed[one_of(name, listed, "--device")]
