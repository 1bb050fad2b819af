"""Language models: their prompts, phases, blocks and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero_lab import lookup

if TYPE_CHECKING:
    from hetero_lab.llm.generation import detokenize as detokenize, tokenize as tokenize
    from hetero_lab.llm.language_plans import (
        block_curve as block_curve,
        plan_phases as plan_phases,
        plan_static_phases as plan_static_phases,
    )
    from hetero_lab.llm.layer_memory import measure_memory as measure_memory
    from hetero_lab.model.static_phases import static_phases as static_phases

lookup.attach(__name__)
