"""A real worker that really fails at a chosen placement: by a signal, a hang or eating memory.

Started in place of the usual worker; the fault is chosen by the environment of the test.
"""

from __future__ import annotations

import os
import signal
import time

from hetero_lab.experiments.worker import HANDLERS, serve

_eaten = []


def _turn(bench, args):
    key = os.environ["FAULT_KEY"]
    if key in (args["key"], "every"):
        fault = os.environ["FAULT"]
        if fault == "signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif fault == "hang":
            time.sleep(3600)
        elif fault == "memory":
            while True:
                _eaten.append(bytearray(os.urandom(1 << 20) * 16))
        elif fault == "signal once" and not os.path.exists(os.environ["FAULT_MARK"]):
            open(os.environ["FAULT_MARK"], "w").close()
            os.kill(os.getpid(), signal.SIGSEGV)
    return HANDLERS["turn"](bench, args)


if __name__ == "__main__":
    serve({**HANDLERS, "turn": _turn})
