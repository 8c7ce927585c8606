"""GPU-hours of planned runs on a device, and their price. The commands that plan a study or a
single run use them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tst_study.cost.compute import gpu_hours
from tst_study.cost.devices import DEVICES, Device, PublishedMfu, device_named, published_mfu
from tst_study.errors import UserError, one_of
from tst_study.text import big

T = TypeVar("T")


@dataclass(frozen=True)
class Prices:
    """The device for which GPU-hours are estimated, and its price."""

    device: str | None = None
    """The device's name, as `device_named` takes it. None if hours come from elsewhere: the plan of
    a study then uses hours that were measured on CPUs."""
    mfu: float | None = None
    """A measured MFU (the share of the peak FLOP/s that training reaches), which replaces the
    published ones."""
    per_gpu_hour: float | None = None
    """The price of one GPU-hour, in any currency; None leaves costs out."""

    def __post_init__(self) -> None:
        if self.device is None and (self.mfu or self.per_gpu_hour):
            raise UserError("--mfu and --price: name the --device, too, such as H100")

    def gpu(self) -> Device | None:
        """Return the device's data sheet; None if no device is named. Raises `UserError` for a
        device that is not listed."""
        if self.device is None:
            return None
        listed = {device.name: device for device in DEVICES}
        return device_named(self.device) or listed[one_of(self.device, listed, "--device")]

    def mfus(self, *, experts: bool) -> PublishedMfu | None:
        """Return the range of MFU to expect on the device, with its source.

        `experts`: whether the model is a mixture of experts. It is `mfu`, if that is set, and
        otherwise the published range; None if no device is named or no range is published for it.
        Raises `UserError` if a published range is wanted for a device that is not listed.
        """
        if self.mfu is not None:
            return PublishedMfu(self.mfu, self.mfu, "as given")
        device = self.gpu()
        return published_mfu(device, experts=experts) if device else None

    def gpu_hours(self, flops: float, *, experts: bool) -> list[float] | None:
        """Return the fewest and the most GPU-hours to expect; None if no device is named or no MFU
        on it is known. Raises `UserError` for a device that is not listed."""
        device, mfus = self.gpu(), self.mfus(experts=experts)
        if device is None or mfus is None:
            return None
        return [gpu_hours(flops, device.peak, mfu) for mfu in (mfus.high, mfus.low)]

    def in_words(self, hours: Sequence[float]) -> str:
        """Format hours as `120–180 GPU-hours of H100 in bfloat16, costing 240–360 (2 per
        GPU-hour)`.

        `hours`: the fewest and the most. The number format is always bfloat16, because the peaks
        and the published MFUs are for bfloat16.
        """
        text = f"{span(hours)} GPU-hours of {self.device} in bfloat16"
        price = self.per_gpu_hour
        if price is None:
            return text
        costs = span([price * each for each in hours])
        return f"{text}, costing {costs} ({price:g} per GPU-hour)"

    def unknown(self) -> str:
        """Say why hours on the device are not known. A device must be named."""
        device = self.gpu()
        assert device is not None
        return f"hours not known: no MFU on {device.name} is published; give --mfu"


def mfu_source(mfus: PublishedMfu) -> str:
    """Format MFUs and their source as `31%–48% MFU, torchtitan's performance pages`."""
    return f"{range_of([mfus.low, mfus.high], '{:.0%}'.format)} MFU, {mfus.source}"


def range_of(ends: Sequence[T] | None, written: Callable[[T], str]) -> str:
    """Format a range as `least–most`, as one value if both read the same, and as an empty string if
    `ends` is None."""
    return "–".join(dict.fromkeys(map(written, ends or ())))


def span(ends: Sequence[float], least: float = 99_999.5) -> str:
    """Format a range of amounts. From `least` on, both ends have the unit of the lower one, such as
    996k–1,540k; below, they have two significant digits, or from 100 on are whole numbers."""
    if ends and ends[0] >= least:
        return range_of(ends, lambda end: big(end, ends[0]))
    return range_of(ends, lambda end: f"{end:,.0f}" if end >= 99.5 else f"{end:.2g}")
