"""New pages of the file cache: filled, measured, and given back."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import pages


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files are written, with little to wait for and little to use up."""
    monkeypatch.setattr("outbox.embedded.default_directory", lambda: tmp_path / "new")
    monkeypatch.setattr(pages, "_TAKEN_BACK_SECONDS", 0.0)
    monkeypatch.setattr(pages, "_AT_HAND_MEGABYTES", 3)
    return tmp_path / "new"


def test_each_round_has_its_rate(directory: Path) -> None:
    """And nothing is left behind."""
    found = pages.rates(rounds=4, megabytes=1)
    assert len(found) == 4
    assert min(found) > 0
    assert not list(directory.iterdir())


def test_the_memory_at_hand_stays_used_up_meanwhile(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ballast is there, and on the disk, for as long as something is measured."""
    synced: list[int] = []
    monkeypatch.setattr(
        "os.fsync", lambda number: synced.append(Path(f"/dev/fd/{number}").stat().st_size)
    )
    with pages.all_new():
        assert synced == [3 * 1024**2]
        assert pages.rates(rounds=1, megabytes=1)
    assert not list(directory.iterdir())
