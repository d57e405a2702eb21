"""Ray's workers: how they scale, what they cost, beside Ray Data, and a soak run in which machines are lost."""
