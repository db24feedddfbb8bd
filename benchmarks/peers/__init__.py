"""Other queues, each run by a small program of its own: ``PROGRAM drain URL JOBS``,
``PROGRAM install URL 0`` and ``PROGRAM commit URL SECONDS``. Each prints one JSON object, and each
is optional.
"""
