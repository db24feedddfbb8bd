"""The storm: thousands of faults of each kind, each counted alone, and every history judged.

``python -m tests.faults.storm --help``. A history is a fresh database, a mail service with a record
of its own, orders, consumers as real processes, and faults that a seed has chosen. Then the faults
stop, fresh consumers drain the queue, and the independent oracle (``tests.faults.oracle``) says
what became of each order. What it says goes into a file of JSON lines, from which docs/evidence.md
is rendered; a run that was interrupted goes on from there.
"""
