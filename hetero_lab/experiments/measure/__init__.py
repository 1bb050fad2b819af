"""How anything is measured: trials, records, rounds, the store, workers and fleets."""
