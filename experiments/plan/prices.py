"""What runs cost on a device."""

from dataclasses import dataclass

from tst_study.config.schema import Model
from tst_study.cost.devices import DEVICES, Device, PublishedMfu, device_named, published_mfu
from tst_study.errors import UserError


@dataclass(frozen=True)
class Prices:
    """What runs cost on a device; without one, hours are those measured in the study itself."""

    device: str | None = None
    mfu: float | None = None
    """In the place of the published ones."""
    per_gpu_hour: float | None = None

    def gpu(self) -> Device | None:
        """Raises `UserError` for a device that is not known."""
        known = device_named(self.device or "")
        if self.device and known is None:
            names = ", ".join(device.name for device in DEVICES)
            raise UserError(
                f"--device {self.device}: its speeds are not known here; known: {names}"
            )
        return known

    def mfus(self, model: Model) -> PublishedMfu | None:
        """The range of MFU that the device is expected to reach, and who says so; None where
        nobody does."""
        if self.mfu is not None:
            return PublishedMfu(self.mfu, self.mfu, "as given")
        device = self.gpu()
        return published_mfu(device, experts=model.experts is not None) if device else None
