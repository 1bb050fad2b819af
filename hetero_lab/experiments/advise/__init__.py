"""What to deploy: candidates raced, the best ones refined, the verdict written down."""
