"""What domino_tune keeps on disk: profiles."""
