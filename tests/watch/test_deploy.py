"""deploy/: the dashboard and the alerts name metrics that there are, and a real Prometheus takes them."""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

import cedar
from cedar.watch.status import figures
from tests.waiting import eventually

DEPLOY = Path(__file__).parents[2] / "deploy"


def named(text):
    """The metrics that a text names."""
    return set(re.findall(r"\bcedar_[a-z_]+", text))


def expressions():
    board = json.loads((DEPLOY / "grafana.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


@pytest.fixture(scope="module")
def given():
    """The names of the metrics of a loader, and their labels."""
    with cedar.from_items([{"x": 1}]).loader(executor="inline") as loader:
        list(loader)
        return {f"cedar_{f.name}{'_total' if f.counts else ''}": f for f in figures(loader.report())}


def test_dashboard_and_alerts_name_metrics_that_there_are(given):
    used = named(" ".join(expressions())) | named((DEPLOY / "alerts.yml").read_text())
    assert used <= given.keys()
    assert given.keys() - used <= {"cedar_deliveries_total", "cedar_stall_ratio"}  # the others are shown somewhere
    for text in [*expressions(), (DEPLOY / "alerts.yml").read_text()]:
        for name, chosen in re.findall(r"(cedar_[a-z_]+)\{([^}]*)\}", text):
            labels = {each.partition("=")[0].strip() for each in chosen.split(",")}
            assert labels <= {"job", "rank", given[name].label}


def test_the_metrics_that_the_documentation_lists_are_those_there_are(given):
    text = (DEPLOY.parent / "docs" / "watch.md").read_text()
    assert named(text.partition("Counters: ")[2].partition("All have the label")[0]) == given.keys()


def test_the_alerts_fire_when_they_should():
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt install prometheus")
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"], cwd=DEPLOY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def free_port():
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def asked(port, path, **query):
    url = f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def waited_for(look):
    """What ``look`` finds once it finds something."""
    found = []

    def there():
        with contextlib.suppress(OSError):
            found.append(look())
        return found and found[-1]

    assert eventually(there)
    return found[-1]


def test_a_real_prometheus_scrapes_a_loader_and_reads_every_panel(tmp_path, monkeypatch):
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed: apt install prometheus")
    pytest.importorskip("prometheus_client")
    monkeypatch.setenv("CEDAR_SERVE_TOKEN", "a token & more")
    port = free_port()
    with cedar.from_items([{"x": i} for i in range(100)]).batch(10).loader(serve="127.0.0.1:0") as loader:
        assert len(list(loader)) == 10
        config = (DEPLOY / "prometheus.yml").read_text().replace("the value of CEDAR_SERVE_TOKEN", "a token & more")
        config = config.replace("127.0.0.1:9464", urllib.parse.urlsplit(loader.url).netloc).replace("15s", "1s")
        (tmp_path / "prometheus.yml").write_text(config)
        shutil.copy(DEPLOY / "alerts.yml", tmp_path)
        started = subprocess.Popen(
            ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"],
            cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            rows = waited_for(lambda: asked(port, "/api/v1/query", query="cedar_rows_total")["data"]["result"])
            assert [(each["metric"]["rank"], each["value"][1]) for each in rows] == [("0", "100")]
            (group,) = asked(port, "/api/v1/rules")["data"]["groups"]
            assert len(group["rules"]) == 9
            for text in expressions():
                query = text.replace("$__rate_interval", "1m").replace("$job", "cedar")
                assert asked(port, "/api/v1/query", query=query)["status"] == "success"
        finally:
            started.terminate()
            started.wait(30)


def test_the_dashboard_is_one_that_grafana_loads(tmp_path):
    if shutil.which("grafana") is None and shutil.which("grafana-server") is None:
        pytest.skip("grafana is not installed; the panels' expressions are asked of a Prometheus instead")
    home = Path("/usr/share/grafana")
    port = free_port()
    provisioning = tmp_path / "provisioning" / "dashboards"
    provisioning.mkdir(parents=True)
    provider = {"apiVersion": 1, "providers": [{"name": "cedar", "type": "file", "options": {"path": str(DEPLOY)}}]}
    (provisioning / "cedar.yaml").write_text(json.dumps(provider))
    settings = f"""
[server]\nhttp_addr = 127.0.0.1\nhttp_port = {port}
[paths]\ndata = {tmp_path}/data\nlogs = {tmp_path}/logs\nprovisioning = {tmp_path}/provisioning
[auth.anonymous]\nenabled = true\norg_role = Admin
"""
    (tmp_path / "grafana.ini").write_text(settings)
    command = ["grafana", "server"] if shutil.which("grafana") else ["grafana-server"]
    started = subprocess.Popen(
        [*command, f"--config={tmp_path}/grafana.ini", f"--homepath={home}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        board = waited_for(lambda: asked(port, "/api/dashboards/uid/cedar"))["dashboard"]
        assert len(board["panels"]) == len(json.loads((DEPLOY / "grafana.json").read_text())["panels"])
    finally:
        started.terminate()
        started.wait(30)
