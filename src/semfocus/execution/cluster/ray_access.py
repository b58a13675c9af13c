"""By which interface and which token this process talks to a Ray cluster.

    access = Access("token", loopback=True, token=own_token())
    ray.init(...)
    access.give_back()                  after ray.shutdown()

Ray reads both from the environment as it is imported, and keeps to it: a driver that goes by the mode of an earlier
cluster does not understand the next one, whose first actor Ray then takes for abandoned. So Ray is told of each change.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # off: Ray binds to the loopback interface, on any system
AUTH_MODE = "RAY_AUTH_MODE"  # token, disabled, ...
AUTH_TOKEN = "RAY_AUTH_TOKEN"  # the name of a variable


class Access:
    """What Ray is told for one connection."""

    def __init__(self, mode: str, loopback: bool, token: str = "") -> None:
        """Without a token, the one that Ray finds."""
        self.before = {name: os.environ.get(name) for name in (LOOPBACK_SWITCH, AUTH_MODE, AUTH_TOKEN)}
        self.beyond_before = ray_constants().ENABLE_RAY_CLUSTER
        os.environ[AUTH_MODE] = mode
        if token:
            os.environ[AUTH_TOKEN] = token
        if loopback:  # Ray listens on every interface on Linux, unless told
            os.environ.setdefault(LOOPBACK_SWITCH, "0")
            ray_constants().ENABLE_RAY_CLUSTER = False
        read_again()

    def give_back(self) -> None:
        """Leave all as it was before."""
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        ray_constants().ENABLE_RAY_CLUSTER = self.beyond_before
        read_again()


def own_token() -> str:
    """A token for a cluster that lives no longer than this process."""
    return secrets.token_hex(32)


def ray_constants() -> Any:
    """What Ray has made of the environment as it was imported."""
    from ray._private import ray_constants

    return ray_constants


def read_again() -> None:
    """Have Ray go by the environment as it is now."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[missing-module-attribute]

    Config.initialize("")  # first: without a token to be found, Ray ends a process that goes by one
    AuthenticationTokenLoader.instance().reset_cache()
