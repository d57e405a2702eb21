"""Image datasets and decoders."""
