"""What was measured: trials, records, their store, tables; the one module that compares."""
