"""Predictor: the predicted latency of a placement, which can be moved op by op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hetero_lab.errors import AffinityError, PlanError, did_you_mean, shorten
from hetero_lab.placement.affinity import Affinity
from hetero_lab.planning.objective import LATENCY, THROUGHPUT, Evaluation, Objective


@dataclass(frozen=True, eq=False)
class Predictor:
    """The predicted latency of a placement, which can be moved op by op.

    A move costs a few milliseconds on a model of a thousand ops.
    """

    objective: Objective
    devices: np.ndarray

    @classmethod
    def of(cls, objective: Objective, affinity: Affinity) -> Predictor:
        """Predict an affinity."""
        return cls(objective, objective.device_numbers(affinity))

    @cached_property
    def evaluation(self) -> Evaluation:
        """The costs part by part."""
        return self.objective.evaluate(self.devices)

    @property
    def predicted_us(self) -> float:
        """Latency in µs."""
        return self.evaluation.value_ns(LATENCY) / 1000.0

    @property
    def busiest_us(self) -> float:
        """Time between two requests that follow each other through the devices, in µs."""
        return self.evaluation.value_ns(THROUGHPUT) / 1000.0

    @property
    def n_subgraphs(self) -> int:
        """Number of subgraphs."""
        return int(self.evaluation.real.sum())

    @property
    def affinity(self) -> Affinity:
        """The placement."""
        return self.objective.affinity(self.devices)

    def moved(self, ops: Mapping[str, str]) -> Predictor:
        """Return the prediction with some ops on other devices.

        An op of a stateful path moves the path; a constant, parameter or result stays with the
        op that it belongs to.

        Raises
        ------
        AffinityError
            No op has that name.
        PlanError
            The cost model does not know the device, or the device does not support the op.
        """
        objective, devices = self.objective, self.devices.copy()
        for name, device in ops.items():
            if name not in objective.graph.index_of:
                known = [objective.graph.ops[index].name for index in objective.graph.placeable]
                raise AffinityError(
                    f"No op is called {shorten(str(name))}.{did_you_mean(str(name), known)}"
                )
            if device not in objective.devices:
                raise PlanError(
                    f"This cost model does not know {shorten(str(device))}: it holds for "
                    f"{', '.join(objective.devices)}."
                )
            index = objective.graph.index_of[name]
            if index in objective.placeable_nodes:
                leader = objective.graph.leader[index]
                devices[objective.followers[leader]] = objective.devices.index(device)
        objective.check_support(devices)
        return Predictor(objective, devices)
