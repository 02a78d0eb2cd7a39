"""Where a result comes from: what was typed, and of which commit the source was."""

import shlex
import subprocess
import sys
from pathlib import Path


def command() -> str:
    """What was typed, with the program by its bare name."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def commit() -> str:
    """The commit of the source, `-dirty` if files differ from it; empty outside a repository."""
    # Not this file's own folder: an editable installation keeps links to the files elsewhere.
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
