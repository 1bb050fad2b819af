"""A real worker that dies, hangs, or refuses, where two ops are compiled as neighbours.

Started in place of the usual worker. The environment of the test chooses the ops:
``FAULT_READER`` reads what ``FAULT_MAKER`` makes, which is the type or the name of a node.
"""

from __future__ import annotations

import os
import signal
import threading

from hetero_lab.backend.core import shared_core
from hetero_lab.experiments.measure.workers.requests import InferFile
from hetero_lab.experiments.measure.workers.worker import serve


def _are_neighbours(path):
    nodes = {node.get_friendly_name(): node for node in shared_core().read_model(path).get_ops()}
    reader = nodes.get(os.environ["FAULT_READER"])
    makers = [value.get_node() for value in reader.input_values()] if reader else []
    wanted = os.environ["FAULT_MAKER"]
    return any(wanted in (m.get_friendly_name(), m.get_type_name()) for m in makers)


def _answer(bench, request):
    if not isinstance(request, InferFile):
        return bench.answer(request)
    # On CPU nothing is wrong, and HETERO is given a cut between them.
    homes = request.affinities or {}
    homes_of = (os.environ[name] for name in ("FAULT_READER", "FAULT_MAKER"))
    pair = {homes.get(name, request.target) for name in homes_of}
    if _are_neighbours(request.path) and len(pair) == 1 and pair != {"CPU"}:
        if os.environ["FAULT"] == "refuse":
            raise RuntimeError("no kernel for this")
        if os.environ["FAULT"] == "hang":
            threading.Event().wait()
        os.kill(os.getpid(), signal.SIGSEGV)
    return bench.answer(request)


if __name__ == "__main__":
    serve(_answer)
