"""Workers that are actors of a Ray cluster, on any of its machines.

Ray places the actors, starts them again where they have died, and carries what they make.

::

    pool ── tasks ──> Relay (a thread of this process) ── calls ──> RayWorker (an actor)
         <── results, rows in their slots ──           <── rows ──

:mod:`.options` checks arguments, :mod:`.cluster` connects to Ray, :mod:`.actor` is the actors' side, :mod:`.relay`
gives them tasks and brings back results, :mod:`.pool` is what the engine sees. Ray is imported when a pool starts.
"""
