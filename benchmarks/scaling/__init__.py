"""How far loaders with Ray's workers scale: costs measured here, and a simulation of clusters that are not here.

``python -m benchmarks.scaling costs`` measures what a task and a megabyte cost; ``predict`` simulates clusters with
these costs; ``validate`` runs small ones, as nodes of this machine, beside their simulation.
"""
