"""Where each op goes: affinities, the partition they lead to, and what is awkward in it."""
