"""What earlier calls of advise kept in their store, so that the same call goes on with it."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from hetero_lab.costs.cost_model import CostModel
from hetero_lab.errors import OutputPathError
from hetero_lab.interrupts import partial_of
from hetero_lab.model.read import PreparedModel, prepare, save
from hetero_lab.placement.affinity import Affinity
from hetero_lab.tables import check_directory, make_directory, move, scratch_directory


class KeptFiles:
    """Files of a store, each named by all that its content depends on; without a store, none.

    ``asked`` is what every search depends on: another call may ask for something else.
    """

    def __init__(self, store: Path | None, asked: Sequence[str]):
        self.store = None if store is None else make_directory(store)
        if self.store is not None:
            check_directory(self.store)
        self._asked = asked

    def directory(self, name: str) -> Path | None:
        """Return where a sweep is kept; none without a name."""
        return self.store / name if self.store is not None and name else None

    def _file(self, name: str, *depends_on: str) -> Path | None:
        return self.directory(f"{name}-{digest([*self._asked, *depends_on])}.json")

    def affinity(self, name: str, *depends_on: str) -> Affinity | None:
        """Return the result of an earlier search, if there is one."""
        file = self._file(name, *depends_on)
        return Affinity.from_json(file) if file is not None and file.is_file() else None

    def keep(self, affinity: Affinity, name: str, *depends_on: str) -> None:
        """Keep the result of a search."""
        if (file := self._file(name, *depends_on)) is not None:
            affinity.to_json(file)

    @contextlib.contextmanager
    def costs(self, name: str, *depends_on: str, whole: bool = False) -> Iterator[CostModel | None]:
        """Yield the costs that an earlier call kept; keep those that its early end brings.

        ``whole`` leaves out the costs of a calibration that Ctrl-C ended.
        """
        path = self._file(name, *depends_on)
        try:
            yield CostModel.from_json(path) if path is not None and path.is_file() else None
        except BaseException as stop:
            learnt = partial_of(stop)
            if path and isinstance(learnt, CostModel) and not (whole and learnt.interrupted):
                learnt.to_json(path)
            raise

    def variant(self, name: str, *depends_on: str) -> PreparedModel | None:
        """Return a variant of the model, if one was kept."""
        file = self.directory(f"{name}-{digest(depends_on)}.xml")
        return prepare(file) if file is not None and file.is_file() else None

    def keep_variant(
        self, made: PreparedModel, notes: list[str], name: str, *depends_on: str
    ) -> PreparedModel:
        """Write a variant of the model, whole or not at all, and return it as it is read again.

        If it cannot be written, ``notes`` says so, and the variant is returned as it is.
        """
        kept = self.directory(f"{name}-{digest(depends_on)}.xml")
        if kept is None:
            return made
        try:
            with scratch_directory(kept.parent, ".hetero_lab-") as draft:
                save(made.model, draft / kept.name)
                for suffix in (".bin", ".xml"):  # the weights first: a structure implies them
                    move((draft / kept.name).with_suffix(suffix), kept.with_suffix(suffix))
        except (OSError, RuntimeError, OutputPathError) as error:
            notes.append(f"The int8 variant could not be kept in store=: {error}")
            return made
        return prepare(kept)


def digest(parts: Sequence[str]) -> str:
    """Return a short name for texts such as the labels of finalists."""
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=4).hexdigest()
