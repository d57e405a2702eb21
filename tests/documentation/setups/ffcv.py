from fastload.cli import main

assert main(["pack", "train", "packed", "--coefficients", "--workers", "1"]) == 0
