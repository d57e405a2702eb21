"""What the profiler says, against what is so."""
