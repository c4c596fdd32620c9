"""`phalanx completion`: sourced in a real bash, which then completes as at a tab key."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.local_cluster import LocalCluster

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


def complete(line: str, folder: Path, **environment: str) -> list[str]:
    """What bash would offer at the end of `line`."""
    program = folder / "phalanx"
    if not program.exists():
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m phalanx "$@"\n')
        program.chmod(0o755)
    words = line.split(" ")
    script = (
        'source <(phalanx completion bash) || exit 9; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); compopt() { :; }; '
        "_phalanx_completion phalanx; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *words],
        text=True, capture_output=True, timeout=60, check=False,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **environment},
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.split()


def test_bash_completes_commands_options_kinds_and_names(server: LocalCluster, tmp_path: Path) -> None:
    container = {"name": "c", "image": "app"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "to-complete"}, "spec": {"containers": [container]}}
    server.create("/api/v1/namespaces/default/pods", pod)
    here = {"KUBECONFIG": str(server.kubeconfig)}
    assert sorted(complete("phalanx wh", tmp_path)) == ["whatif", "why"]
    assert "--watch" in complete("phalanx why --w", tmp_path)
    assert complete("phalanx why -o ya", tmp_path) == ["yaml"]
    assert complete("phalanx why podg", tmp_path, **here) == ["podgroup/"]
    assert complete("phalanx why pod/to-c", tmp_path, **here) == ["pod/to-complete"]
    assert complete("phalanx plan pod to-c", tmp_path, **here) == ["to-complete"]
    # No server to ask: nothing is offered and nothing is said.
    assert complete("phalanx why pod/to-c", tmp_path, KUBECONFIG="/nonexistent") == []
    server.delete("/api/v1/namespaces/default/pods/to-complete")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_get_a_script_that_they_can_read(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "completion", shell], text=True, capture_output=True, timeout=60, check=True
    )
    assert "_PHALANX_COMPLETE" in done.stdout and "phalanx" in done.stdout
    if shutil.which(shell):
        check = [shell, "-n", "/dev/stdin"] if shell == "zsh" else [shell, "--no-execute", "/dev/stdin"]
        assert subprocess.run(check, input=done.stdout, text=True, check=False, timeout=60).returncode == 0


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh: apt-get install zsh")
def test_zsh_goes_on_with_the_name_after_a_kind(tmp_path: Path) -> None:
    program = tmp_path / "phalanx"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m phalanx "$@"\n')
    program.chmod(0o755)
    (tmp_path / ".zshrc").write_text(
        "PS1='> '; unsetopt PROMPT_SP; autoload -U compinit; compinit -u -D; source <(phalanx completion zsh)\n"
    )
    ours, theirs = pty.openpty()
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ZDOTDIR": str(tmp_path), "TERM": "dumb"}
    shell = subprocess.Popen(["zsh", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
                             start_new_session=True)  # fmt: skip
    os.close(theirs)
    said = ""

    def until(text: str) -> None:
        nonlocal said
        while text not in said:
            assert select.select([ours], [], [], 60)[0], f"no {text!r} in {said!r}"
            said += os.read(ours, 4096).decode(errors="replace")

    try:
        until("> ")
        os.write(ours, b"echo phalanx why podg\x01\x0b")  # the line editor is there: it takes the line away again
        os.write(ours, b"phalanx why podg\t")
        until("podgroup/")
        os.write(ours, b"mine\x01echo \r")  # what the line has become, as words
        until("phalanx why podgroup/mine")
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
