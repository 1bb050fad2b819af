"""A real worker that really fails at a chosen placement: signal, hang, memory, silence.

"orphan" and "family" are a signal and a hang of a worker that has a child; "endless" is a compile
that does not end, "gone" a device that is there for some turns and then is not.

Started in place of the usual worker; the fault is chosen by the environment of the test.
"""

from __future__ import annotations

import os
import signal
import time

from hetero_lab.measure.bench import Bench
from hetero_lab.measure.worker_program import serve

_eaten = []
_turns = []


def _start_child():
    child = os.fork()
    if not child:
        time.sleep(3600)
    with open(os.environ["FAULT_MARK"], "a") as mark:
        mark.write(f"{child}\n")


def _answer(bench, request):
    key, fault, given = os.environ["FAULT_KEY"], os.environ["FAULT"], request.keywords
    if request.func is Bench.compile and fault == "endless" and given["trial"].key == key:
        time.sleep(3600)
    if request.func is not Bench.run_turn:
        return request(bench)
    if key in (given["key"], "every"):
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
        elif fault == "gone":
            _turns.append(given["key"])
            if len(_turns) > int(os.environ["FAULT_AFTER"]):
                raise RuntimeError("[GPU] clFinish, error code: -36 CL_INVALID_COMMAND_QUEUE")
        elif fault == "silence":  # its output ends, the process does not
            os.closerange(3, 256)
            os.dup2(2, 1)
            time.sleep(3600)
    return request(bench)


if __name__ == "__main__":
    serve(answer=_answer)
