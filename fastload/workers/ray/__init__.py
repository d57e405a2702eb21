"""Workers that are actors of a Ray cluster, on any of its machines.

Ray places the actors, starts them again where they have died, and carries what they make.

::

    RayPool ── tasks ──> its thread ── calls ──> RayWorker (an actor)
            <── results, rows in their slots ──  <── rows ──

:mod:`.pool` starts them, :mod:`.options` checks arguments, :mod:`.cluster` connects to Ray, :mod:`.actor` is the side
of the actors, :mod:`.relay` gives them tasks and brings back results. Ray is imported when a pool starts.
"""
