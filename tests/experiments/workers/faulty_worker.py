"""A real worker that really fails at a chosen placement: signal, hang, memory, silence.

"orphan" and "family" are a signal and a hang of a worker that has a child.

Started in place of the usual worker; the fault is chosen by the environment of the test.
"""

from __future__ import annotations

import os
import signal
import time

from hetero_lab.experiments.workers.requests import RunTurn
from hetero_lab.experiments.workers.worker import answer, serve

_eaten = []


def _start_child():
    child = os.fork()
    if not child:
        time.sleep(3600)
    with open(os.environ["FAULT_MARK"], "a") as mark:
        mark.write(f"{child}\n")


def _answer(bench, request):
    if not isinstance(request, RunTurn):
        return answer(bench, request)
    key = os.environ["FAULT_KEY"]
    if key in (request.key, "every"):
        fault = os.environ["FAULT"]
        if fault == "signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif fault == "orphan":
            _start_child()
            os.kill(os.getpid(), signal.SIGSEGV)
        elif fault == "hang":
            time.sleep(3600)
        elif fault == "family":
            _start_child()
            time.sleep(3600)
        elif fault == "memory":
            while True:
                _eaten.append(bytearray(os.urandom(1 << 20) * 16))
        elif fault == "signal once" and not os.path.exists(os.environ["FAULT_MARK"]):
            open(os.environ["FAULT_MARK"], "w").close()
            os.kill(os.getpid(), signal.SIGSEGV)
        elif fault == "signal later":  # after as many turns, those of other workers counted too
            with open(os.environ["FAULT_MARK"], "a") as mark:
                mark.write("x")
            if os.path.getsize(os.environ["FAULT_MARK"]) > int(os.environ["FAULT_AFTER"]):
                os.kill(os.getpid(), signal.SIGSEGV)
        elif fault == "silence":  # its output ends, the process does not
            os.closerange(3, 256)
            os.dup2(2, 1)
            time.sleep(3600)
    return answer(bench, request)


if __name__ == "__main__":
    serve(_answer)
