"""Which op runs where: priorities, affinity, placement, HETERO's partition, limits, ratios."""
