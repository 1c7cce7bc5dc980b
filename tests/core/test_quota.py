"""What control groups leave of the machine."""

from __future__ import annotations

import pytest

from cedar.core import quota
from cedar.core.quota import cores, memory


def root_with(tmp_path, cgroup, **files):
    """A file system with this process's control groups; double underscores stand for slashes."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path)


def test_a_quota_of_version_2_counts_also_from_above(tmp_path, monkeypatch):
    monkeypatch.setattr(quota, "allowed", lambda: 16)
    files = {"job__cpu_dot_max": "350000 100000\n", "job__task__cpu_dot_max": "max 100000\n"}
    assert cores(root_with(tmp_path, "0::/job/task\n", **files)) == 4


def test_a_quota_of_version_1_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(quota, "allowed", lambda: 16)
    files = {"cpu__job__cpu_dot_cfs_quota_us": "200000\n", "cpu__job__cpu_dot_cfs_period_us": "100000\n"}
    assert cores(root_with(tmp_path, "3:cpu,cpuacct:/job\n", **files)) == 2


def test_no_quota_leaves_the_affinity(tmp_path, monkeypatch):
    monkeypatch.setattr(quota, "allowed", lambda: 3)
    files = {"cpu__cpu_dot_cfs_quota_us": "-1\n", "cpu__cpu_dot_cfs_period_us": "100000\n"}
    assert cores(root_with(tmp_path, "3:cpu:/\n", **files)) == 3
    assert cores(str(tmp_path / "nowhere")) == 3


@pytest.mark.parametrize(
    ("cgroup", "name"),
    [("0::/job\n", "job__memory_dot_max"), ("4:memory:/job\n", "memory__job__memory_dot_limit_in_bytes")],
)
def test_a_limit_of_memory_counts(tmp_path, cgroup, name):
    assert memory(root_with(tmp_path, cgroup, **{name: "1048576\n"})) == 1048576


def test_without_a_limit_it_is_the_memory_of_the_machine(tmp_path):
    assert memory(root_with(tmp_path, "0::/job\n", job__memory_dot_max="max\n")) == memory(str(tmp_path / "nowhere"))
