from fastload.cli import main

assert main(["pack", "train", "packed", "--workers", "1"]) == 0
