"""Ray's workers: what they cost, beside Ray Data, and runs in which machines are lost."""
