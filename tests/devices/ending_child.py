"""A process that is asked about a model and ends as ``ENDS`` in the environment says.

That holds words: the name of a signal, ``memory``, ``exit``, or ``answer`` as the real one does;
each process takes the next, by a file that counts them.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from hetero_lab.devices import guarded


def serve(_: object = None) -> None:
    """End in the next way."""
    counter = Path(os.environ["ENDS_COUNTER"])
    n_before = len(counter.read_text()) if counter.exists() else 0
    counter.write_text("x" * (n_before + 1))
    end = os.environ["ENDS"].split()[n_before]
    if end == "answer":
        guarded.serve()
    elif end == "memory":
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.kill(os.getpid(), signal.SIGABRT)
    elif end == "exit":
        sys.exit(7)
    else:
        os.kill(os.getpid(), getattr(signal, end))


if __name__ == "__main__":
    serve()
