"""Ray's workers: what they cost, and a run in which machines come and go."""
