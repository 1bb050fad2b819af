"""Jobs: what a bench is asked to compile and run, as data that travels to a worker."""

from __future__ import annotations

from typing import Any

import msgspec

from hetero_lab.runtime.runners import HETERO


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A placement to compile and run.

    ``affinity`` maps names of ops to devices: a worker's graph, read from a file, may order the
    ops in another way. ``compare`` says whether its outputs are compared with a reference.
    """

    key: str
    label: str
    variant: str
    affinity: dict[str, str]
    device_properties: dict[str, dict[str, Any]]
    direct: bool = False
    executor: str = HETERO
    requests: int = 1
    cache_dir: str = ""
    compare: bool = False
