"""The names of the executors: OpenVINO's own HETERO (or one device), and the parallel one."""

from __future__ import annotations

HETERO, PARALLEL = "hetero", "parallel"
EXECUTORS = (HETERO, PARALLEL)
