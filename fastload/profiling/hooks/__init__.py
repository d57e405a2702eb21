"""Hooks in the processes of a profiled script: each writes records, or notes that its signal is missing."""
