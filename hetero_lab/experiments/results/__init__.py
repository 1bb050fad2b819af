"""What was measured, as results with tables; and the one module that compares."""
