"""The submodels of a partition, compiled and wired together: which reads what from which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov

from hetero_lab.errors import CompileError, names_at_hand
from hetero_lab.runtime.cut import Submodel

_MADE_UP = 1_000_000  # so high a number is hardly in a name of the model's own


class Wires:
    """Which subgraph reads what from which."""

    def __init__(self, submodels: tuple[Submodel, ...], parameters: Mapping[str, int]):
        made_at = {
            entry: (s.index, port) for s in submodels for port, entry in enumerate(s.outputs)
        }
        self.n_inputs: int = len(parameters)
        # (subgraph, port, model input) and (subgraph, port, producing subgraph, its port).
        self.from_model: list[tuple[int, int, int]] = []
        self.from_others: list[tuple[int, int, int, int]] = []
        for submodel in submodels:
            for port, entry in enumerate(submodel.inputs):
                if entry[0] == "model":
                    self.from_model.append((submodel.index, port, int(entry[1])))
                elif str(entry[1]) in parameters:
                    # HETERO hands a model input on through its first user; here it is at hand.
                    self.from_model.append((submodel.index, port, parameters[str(entry[1])]))
                else:
                    self.from_others.append((submodel.index, port, *made_at[entry]))
        self.to_model: list[tuple[int, int, int]] = sorted(
            (int(entry[1]), s.index, port)
            for s in submodels
            for port, entry in enumerate(s.outputs)
            if entry[0] == "model"
        )
        sources: list[set[int]] = [set() for _ in submodels]
        self.users: list[list[int]] = [[] for _ in submodels]
        for target, _, source, _ in self.from_others:
            if source not in sources[target]:
                sources[target].add(source)
                self.users[source].append(target)
        self.n_sources: list[int] = [len(s) for s in sources]
        self.first: list[int] = [index for index, n in enumerate(self.n_sources) if not n]

    def urgency(self, spent: list[float]) -> list[float]:
        """Return the time of the longest path from each subgraph to the end (upward rank)."""
        rank = [0.0] * len(spent)
        for index in reversed(range(len(spent))):
            rank[index] = spent[index] + max((rank[u] for u in self.users[index]), default=0.0)
        return rank


class Slot:
    """The infer requests of one request in flight, chained by shared tensors."""

    def __init__(self, compiled: list[ov.CompiledModel], wires: Wires):
        self.requests: list[ov.InferRequest] = [model.create_infer_request() for model in compiled]
        self._wires = wires
        for target, port, source, source_port in wires.from_others:
            tensor = self.requests[source].get_output_tensor(source_port)
            self.requests[target].set_input_tensor(port, tensor)

    def set_inputs(self, arrays: list[np.ndarray]) -> None:
        """Copy the inputs, so that the caller may change its arrays meanwhile."""
        tensors = [ov.Tensor(array.copy()) for array in arrays]
        for subgraph, port, number in self._wires.from_model:
            self.requests[subgraph].set_input_tensor(port, tensors[number])

    def outputs(self, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Copy the outputs."""
        return {
            names[number]: np.array(self.requests[subgraph].get_output_tensor(port).data)
            for number, subgraph, port in self._wires.to_model
        }


def compile_submodels(
    submodels: tuple[Submodel, ...], by_device: Mapping[str, dict[str, Any]], core: ov.Core
) -> list[ov.CompiledModel]:
    """Compile each submodel on its device.

    Raises
    ------
    CompileError
        A device refuses its submodel.
    """
    compiled = []
    for submodel in submodels:
        try:
            compiled.append(
                core.compile_model(submodel.model, submodel.device, by_device[submodel.device])
            )
        except Exception as error:
            ops = [n.get_friendly_name() for n in submodel.model.get_ordered_ops()]
            raise CompileError(
                f"{submodel.device} refuses subgraph {submodel.index} "
                f"({names_at_hand(ops)}): {str(error).strip().splitlines()[-1][:300]}"
            ) from error
    return compiled


def named_rows(submodel: Submodel, rows: Iterable[Any]) -> Iterator[object]:
    """Yield profiling info under the names that HETERO would give it.

    That is with the subgraph in front, and with ports at boundaries called ``Parameter_N`` and
    ``Result_N`` in their order, so that one reader understands both.
    """
    ports: dict[str, str] = {}
    for kind, nodes, entries in (
        ("Parameter", submodel.model.get_parameters(), submodel.inputs),
        ("Result", submodel.model.get_results(), submodel.outputs),
    ):
        for number, (node, entry) in enumerate(zip(nodes, entries, strict=True)):
            if entry[0] == "tensor":
                ports[node.get_friendly_name()] = f"{kind}_{_MADE_UP + number}"
    for row in rows:
        name = str(row.node_name)
        for port, made_up in ports.items():
            if name == port or name.startswith(f"{port}_") or name.endswith(f"_{port}"):
                name = name.replace(port, made_up)
                break
        yield SimpleNamespace(
            node_name=f"subgraph{submodel.index}: {name}",
            node_type=row.node_type,
            exec_type=row.exec_type,
            status=row.status,
            real_time=row.real_time,
            cpu_time=row.cpu_time,
        )
