"""Questions asked of the runtime: profile, and what is stored of the answers."""
