"""A worker that infers models from files once each, so that a device's crash ends only it."""

from __future__ import annotations

from hetero_lab.backend.core import shared_core
from hetero_lab.experiments.workers.worker import serve
from hetero_lab.runtime.infer_once import infer_file

if __name__ == "__main__":
    serve({"infer": lambda _, args: infer_file(**args, core=shared_core())})
