"""Horovod's exceptions."""

from shanty.collectives.elastic import HostsUpdatedInterrupt
from shanty.collectives.errors import HorovodInternalError


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than Horovod was built for. Nothing here raises it."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(f"{name} is {version}, Horovod was built for {installed_version}")
        self.name = name
        self.version = version
        self.installed_version = installed_version


__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]
