"""What the profiler costs the script that it records."""
