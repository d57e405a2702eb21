"""The script with a single loader as a module."""

import runpy

if __name__ == "__main__":
    runpy.run_module("one_loader", run_name="__main__")
