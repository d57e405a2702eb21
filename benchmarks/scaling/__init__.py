"""How far loaders with Ray's workers scale: what a task costs, measured here, and what larger clusters make of it.

``python -m benchmarks.scaling costs`` measures what a task and a megabyte cost; ``validate`` runs small clusters, as
nodes of this machine, beside what the costs say of them. The tables of docs/ray-training.md compute the rest.
"""
