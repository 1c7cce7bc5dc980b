"""What a machine gives, and what is kept of it."""

import os
import stat
import tempfile

import pytest

from cedar.core import process
from cedar.core.process import cores
from cedar.engine import machine as module
from cedar.engine.machine import machine, ship_costs
from cedar.store.keep import user_place
from cedar.store.place import INSIDE, name_of

COSTS = (2e-4, 1e9, 0.5)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache directory of its own, nothing known, and a count of measurements."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_known", {})
    monkeypatch.setattr(module, "_speed", lambda: 100.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    calls = []
    monkeypatch.setattr(module, "ship_costs", lambda: calls.append(1) or COSTS)
    return tmp_path / "cache" / "cedar", calls


def forget(monkeypatch):
    """As another process would begin."""
    monkeypatch.setattr(module, "_known", {})


def test_it_is_measured_once_and_kept_for_other_processes(home, monkeypatch):
    folder, calls = home
    first = machine()
    forget(monkeypatch)
    assert machine() == first
    assert (first.ship_seconds, first.ship_bytes, first.start_seconds) == COSTS
    assert first.speed == 100.0
    assert len(calls) == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_figures_of_a_busy_machine_are_used_but_not_stored(home, monkeypatch):
    _, calls = home
    monkeypatch.setattr(os, "getloadavg", lambda: (cores(), 0.0, 0.0))
    assert machine().ship_seconds == COSTS[0]
    assert machine(measure=False).ship_seconds == COSTS[0]
    forget(monkeypatch)
    assert machine(measure=False).ship_seconds == 5e-4
    machine()
    assert len(calls) == 2


def test_without_measuring_it_takes_what_is_kept_or_the_defaults(home, monkeypatch):
    _, calls = home
    assert machine(measure=False).ship_seconds == 5e-4
    assert calls == []
    machine()
    forget(monkeypatch)
    assert machine(measure=False).ship_seconds == COSTS[0]
    assert len(calls) == 1


def test_a_damaged_entry_is_measured_again_and_replaced(home, monkeypatch):
    folder, calls = home
    machine()
    (kept,) = (folder / INSIDE).glob("*.arrow")
    kept.write_bytes(kept.read_bytes()[:-1])
    for _ in range(2):
        forget(monkeypatch)
        assert machine().ship_bytes == COSTS[1]
    assert len(calls) == 2


@pytest.mark.parametrize("wrong", [-1.0, 0.0, float("nan"), "fast", None])
def test_figures_that_make_no_sense_are_not_taken(home, monkeypatch, wrong):
    _, calls = home
    machine()
    name, place = name_of("machine", module.machine_key()), user_place()
    figures = place.get(name, {}).about | {"ship_bytes": wrong}
    place.put(name, lambda _: figures, {})
    forget(monkeypatch)
    assert machine().ship_bytes == COSTS[1]
    assert len(calls) == 2


def test_figures_of_other_machines_stay(home, monkeypatch):
    _, calls = home
    machine()
    forget(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(module, "machine_key", lambda: "another")
        machine()
    forget(monkeypatch)
    machine()
    assert len(calls) == 2


def test_a_folder_that_others_may_write_is_not_used(home, monkeypatch):
    folder, calls = home
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    machine()
    assert list(folder.iterdir()) == []
    machine()
    assert len(calls) == 1  # this process knows them


def test_a_folder_of_another_user_is_not_used(home, monkeypatch):
    folder, _ = home
    monkeypatch.setattr(os, "geteuid", lambda: 12345678)
    machine()
    assert list(folder.iterdir()) == []


def test_no_place_to_keep_them_is_no_error(home, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert machine().ship_seconds == COSTS[0]


def test_a_machine_without_processes_keeps_the_defaults(home, monkeypatch):
    def refused():
        raise OSError("no more processes")

    monkeypatch.setattr(module, "ship_costs", refused)
    assert machine().ship_seconds == 5e-4
    forget(monkeypatch)
    monkeypatch.setattr(module, "ship_costs", lambda: COSTS)
    assert machine().ship_seconds == COSTS[0]  # the failure was not kept


@pytest.mark.heavy
def test_shipping_is_measured_with_a_real_process():
    assert all(cost > 0 for cost in ship_costs())


# ---- control groups --------------------------------------------------------------------------------------------------


def test_a_run_has_as_many_workers_as_the_quota_allows(monkeypatch):
    monkeypatch.setattr(process, "affinity_cores", lambda: 16)
    quotas = {"cpu.max": [[250_000.0, 100_000.0]]}
    monkeypatch.setattr(process, "_numbers", lambda root, controller, name: iter(quotas.get(name, [])))
    assert cores() == machine(measure=False).cores == 3
