"""Where each op goes: priorities, affinity, placement, the partition that HETERO will make."""
