"""Workers that are actors of a Ray cluster, on any of its machines.

In: tasks, at a seat of another pool (:class:`.seats.Seat`). Out: results, as any worker gives them. Ray schedules the
actors, finds out when they die, and carries what they make; everything else is that of a pool of processes.

::

    pool ── socket or queue ──> Relay (two threads of this process) ── calls ──> RayWorker (an actor)
         <── result, rows ──────                                    <── rows ──

:mod:`.options` checks arguments, :mod:`.cluster` connects to Ray, :mod:`.nodes` compares the machines,
:mod:`.actor` is the actors' side, :mod:`.seats` their place at a pool, :mod:`.pool` what the engine sees. The relay's
parts: :mod:`.assignment` decides who gets a task, :mod:`.pace` how many a slow worker gets, :mod:`.faults` when a loss
is an error, all without Ray;
:mod:`.actors` makes, calls and ends actors; :mod:`.dispatcher` gives them tasks; :mod:`.results` copies rows to their
slots; :mod:`.home` tries samples here that failed elsewhere; :mod:`.relay` has the threads that connect them. Ray
itself is imported when a pool starts.
"""
