"""Instructions that decoding takes on 64-bit ARM, under qemu: fastload's library beside libjpeg-turbo's NEON build."""
