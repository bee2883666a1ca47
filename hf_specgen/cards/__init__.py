"""Model cards: `README.md` with the Hub's metadata, written from what was measured and from nothing else."""
