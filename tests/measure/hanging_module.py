"""A module of the fork server whose set-up never ends."""

import time


def prepare(_data: bytes) -> None:
    time.sleep(600)


def serve(_prepared: object) -> None:
    """Serve nobody."""
