"""AffinityTweaker: change affinities with the mouse."""
