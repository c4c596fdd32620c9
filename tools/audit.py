"""`make audit`: asks pip-audit about the pinned dependencies. Says plainly when no advisory source can be reached."""

from __future__ import annotations

import subprocess
import sys

NOT_CHECKED = 3
SIGNS = ("ConnectionError", "NewConnectionError", "Name or service not known", "Max retries exceeded", "ServiceError")


def main() -> int:
    options = ["--requirement", "requirements.lock", "--disable-pip", "--progress-spinner", "off"]
    command = [sys.executable, "-m", "pip_audit", *options]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    text = done.stdout + done.stderr
    # A mirror without advisories makes pip-audit skip everything and still say that nothing was found.
    if "could not be audited" in text or (done.returncode and any(sign in text for sign in SIGNS)):
        print("nothing was checked: no source of advisories can be reached from here")
        return NOT_CHECKED
    print(text, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
