"""SweepExplorer: the rows of a sweep as points."""
