"""pgqueuer on psycopg."""

from benchmarks.peers.pgqueuer_peer import on_psycopg
from benchmarks.peers.program import main

if __name__ == "__main__":
    main("pgqueuer", on_psycopg)
