"""The boundary to devices. Everything above it is pure or generic; the fake for tests sits below it, at the vendor's
library."""

from abc import ABC, abstractmethod

from kuangchao_operator.layers.resource.model import DriverReading


class DriverAbsentError(Exception):
    """The vendor's library or kernel driver is not on this machine: no fault, there are just no such devices."""


class DeviceDriver(ABC):
    """Reads devices; changes nothing."""

    @abstractmethod
    def discover(self) -> DriverReading:
        """All devices as they are now. Blocking. A broken device is a reading with a fault, not an exception; raises
        DriverAbsentError when there is no such driver here."""


class FirstPresentDriver(DeviceDriver):
    """Asks drivers in order until one is present; each time anew, since a GPU driver may be loaded after the agent."""

    def __init__(self, *drivers: DeviceDriver) -> None:
        self._drivers = drivers

    def discover(self) -> DriverReading:
        """The reading of the first driver that is present. Raises DriverAbsentError when none is."""
        for driver in self._drivers:
            try:
                return driver.discover()
            except DriverAbsentError:
                continue
        raise DriverAbsentError("no driver is present")
