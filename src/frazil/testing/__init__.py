"""Test doubles, for Frazil's tests and yours: a disk that loses unsynced data, and a clock that you set.

from frazil.log.storage import open_storage
from frazil.testing import FakeClock, FaultyDisk

disk = FaultyDisk()
storage = open_storage(disk=disk, clock=FakeClock())
storage.topic("/default/orders").publish("tea")
after_the_power_cut = open_storage(disk=disk.crash(random.Random(1)))
"""

from frazil.testing.clock import FakeClock
from frazil.testing.faulty_disk import FaultyDisk, Operation, PowerCut

__all__ = ["FakeClock", "FaultyDisk", "Operation", "PowerCut"]
