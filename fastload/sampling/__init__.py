"""Which samples an epoch consists of, and in what order each rank loads them.

:mod:`.order` is the order of all ranks together, :mod:`.samplers` the samplers that users and loaders have,
:mod:`.epochs` one epoch of a loader and what it has delivered, :mod:`.sampler_generators` the generators of samplers
that a saved state contains, :mod:`.agreement` the check that all ranks iterate alike. To add an order, implement
:class:`.order.Order`.
"""
