"""The environment of the processes that we start and that load the runtime.

``import openvino`` forks: out of a thread, a child tells Google Analytics of the import. Such a
child can hang in a lock that was taken when it was forked, and if its parent dies first, it lives
on with the parent's pipes open, so that nobody sees the end of what the parent said.
"""

from __future__ import annotations

import os


def environment_of_a_child(**more: str) -> dict[str, str]:
    """Return this process's environment and ``more``, for a process that imports openvino.

    It tells nobody of the import: ``CI`` is the package's own switch for that.
    """
    return {**os.environ, "CI": "true", **more}
