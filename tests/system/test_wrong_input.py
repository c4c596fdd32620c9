"""Whatever is wrong with what was typed: one line that ends with what to type next, and exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from phalanx.cli.main import main
from phalanx.local.store.backup import write_rows
from support.processes import Server

CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    """A folder with an API server's kubeconfig, one with a wrong token, one of a server that is away, and bad files."""
    folder = tmp_path_factory.mktemp("wrong")
    server = Server(folder)
    server.live()
    good = yaml.safe_load(server.kubeconfig.read_text())
    (folder / "good").write_text(yaml.safe_dump(good))
    url, token = good["clusters"][0]["cluster"]["server"], good["users"][0]["user"]["token"]
    (folder / "unknown").write_text(yaml.safe_dump(good).replace(token, "wrong"))
    (folder / "away").write_text(yaml.safe_dump(good).replace(url, "https://127.0.0.1:1"))
    (folder / "bad.yaml").write_text("a: [")
    (folder / "text.yaml").write_text("just text")
    (folder / "empty.yaml").write_text("")
    write_rows(folder / "good.phalanx", [], 1)
    (folder / "config.yaml").write_text(CONFIG)
    yield folder
    server.close()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("whta -f x", "did you mean: phalanx whatif"),
        ("xyzzy", "phalanx --help"),
        ("why job/x --kubeconfig away", "`phalanx up` starts one"),
        ("why podgroup/x --kubeconfig unknown", "phalanx kubeconfig NAME --merge"),
        ("why podgroup/x --kubeconfig good", "kubectl get podgroups -n default"),
        ("why job/x -n nope --kubeconfig good", "kubectl get namespaces"),
        ("why job/x --kubeconfig nofile", "`phalanx list`"),
        ("why job/x --kubeconfig good --context nope", "kubeconfig good has no entry named 'nope' in contexts"),
        ("why foo/x --kubeconfig good", "kinds are pod, podgroup"),
        ("why jobb/x --kubeconfig good", "did you mean job/x?"),
        ("why job/x --kubeconfig text.yaml", "is not a kubeconfig"),
        ("why job/x --name nosuch", "there is no cluster here"),
        ("backup --name nosuch x.phalanx", "there is no cluster here"),
        ("backup nodir/x", "there is no directory nodir"),
        ("backup good.phalanx", "good.phalanx exists already"),
        ("backup x --data nodir", "there is no store in nodir; `phalanx list`"),
        ("backup x --data a --name b", "each says which cluster"),
        ("up --nodes 99999999999", "0<=x<=100000"),
        ("plan job/x --kubeconfig away", "`phalanx up` starts one"),
        ("dashboard --kubeconfig away", "`phalanx up` starts one"),
        ("dashboard --kubeconfig unknown", "phalanx kubeconfig NAME --merge"),
        ("top --once --kubeconfig away", "start a cluster with `phalanx up`"),
        ("top --once --kubeconfig unknown", "phalanx kubeconfig NAME --merge"),
        ("whatif -f config.yaml --kubeconfig away", "start a cluster with `phalanx up`"),
        ("whatif -f nofile", "nofile: No such file"),
        ("whatif -f bad.yaml", "not YAML that can be read: line 2"),
        ("whatif -f text.yaml", "every document needs apiVersion and kind"),
        ("group -f nofile", "nofile: No such file"),
        ("group -f config.yaml", "workloads are CronJob"),
        ("replay bad.yaml", "phalanx up --record FILE"),
        ("restore bad.yaml --data d2", "phalanx backup FILE"),
        ("restore nofile", "there is no backup nofile"),
        ("backup x --kubeconfig away", "phalanx backup --data DIR FILE"),
        ("status nope", "phalanx up --name nope"),
        ("down nope", "phalanx up --name nope"),
        ("kubeconfig nope", "phalanx up --name nope"),
        ("user remove ghost --data nodir", "phalanx up --authorization-mode RBAC"),
        ("up --dashboard nonsense", "--dashboard: 'nonsense' is not HOST:PORT"),
        ("up --config empty.yaml", "--config: empty.yaml: apiVersion"),
        ("up --detach --wait nan --name x", "is not a number of seconds"),
        ("top --once --every nan", "is not a number of seconds"),
        ("restore good.phalanx --data text.yaml", "--data: cannot create text.yaml"),
        ("why job/x --scheduler nonsense", "NAMESPACE/SERVICE"),
        ("why job/x --scheduler ftp://x", "NAMESPACE/SERVICE"),
        ("plan --repair pod/x --kubeconfig good", "--repair is about a podgroup"),
        ("demand -n nope --kubeconfig good", "kubectl get namespaces"),
        ("top --once -n nope --kubeconfig good", "kubectl get namespaces"),
        ("group -f empty.yaml", "only empty documents"),
        ("up --topology bananas=3", "zones=2,blocks=4"),
        ("up --feature-gates Foo=true", "known gates: CompositePodGroup"),
    ],
)
def test_the_error_says_what_to_do(
    place: Path, typed: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(sys, "argv", ["phalanx", *typed.split()])
    with pytest.raises(SystemExit) as end:
        main()
    out, announced = capsys.readouterr()
    assert said in announced and "Traceback" not in announced, announced
    assert (end.value.code, out) == (2, "")


@pytest.mark.parametrize("kubeconfig", ["away", "good"])
def test_a_backup_leaves_a_whole_private_file_or_none(
    place: Path, kubeconfig: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x"
    monkeypatch.setattr(sys, "argv", ["phalanx", "backup", str(target), "--kubeconfig", str(place / kubeconfig)])
    with pytest.raises(SystemExit) as end:
        main()
    made = kubeconfig == "good"
    assert (end.value.code, [each.name for each in tmp_path.iterdir()]) == ((0, ["x"]) if made else (2, []))
    assert not made or target.stat().st_mode & 0o777 == 0o600


def test_a_process_that_cannot_begin_says_what_to_do(place: Path) -> None:
    command = [sys.executable, "-m", "phalanx", "scheduler", "--kubeconfig", "nofile"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60, check=False)
    assert "`phalanx list`" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert (done.returncode, done.stdout) == (2, "")
