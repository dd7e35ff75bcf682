"""`python3 -m lib COMMAND`: sets up the environment where it is missing, then does the command.

Until the environment stands, only the standard library is there. The packages are listed in
environment.yml and nowhere else. An interpreter that has them all, and whose `lib` is this clone's,
is used as it is (conda, a virtual environment, or no environment at all); otherwise `.venv` beside
environment.yml is made, completed if it was interrupted, and takes over.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT_LIST = ROOT / "environment.yml"
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
UNFINISHED = VENV / "unfinished"  # there while pip works, so that a killed installation shows
OWN_DISTRIBUTION = "dp-workbook"
OLDEST_PYTHON = (3, 11, 5)  # the pinned soupsieve asks for it
INTERRUPTED = "Interrupted; the same command goes on where this one stopped."


def main(arguments: list[str]) -> int:
    """Do one command; return the exit code. Expected failures are one line on standard error."""
    if sys.version_info < OLDEST_PYTHON or os.name != "posix":
        found = f"Python {'.'.join(map(str, sys.version_info[:3]))} on {sys.platform}"
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return fail(f"this needs Python {oldest} or newer on Linux, macOS or WSL; found {found}")
    from lib import commands
    from lib.errors import WorkbookError

    try:
        request = commands.parse(arguments)
        python = other_interpreter()
        if python is not None:
            hand_over(python, arguments)
        code = commands.execute(request)
        sys.stdout.flush()
    except WorkbookError as error:
        return fail(str(error))
    except BrokenPipeError:  # the reader of our output has gone; there is nobody left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return fail(INTERRUPTED, code=130)
    return code


def fail(message: str, code: int = 2) -> int:
    """Tell an expected failure in one line."""
    say(message)
    return code


def say(message: str) -> None:
    """Tell what is being done, beside the command's own output."""
    print(" ".join(message.split()), file=sys.stderr, flush=True)


# What an environment must have, and whether it does


def pip_list(text: str) -> list[str]:
    """Requirements under `- pip:` of a conda environment file."""
    requirements: list[str] = []
    inside = False
    for line in text.splitlines():
        item = line.split(" #")[0].strip()
        if item == "- pip:":
            inside, indent = True, line.index("-")
        elif inside and item.startswith("- ") and line.index("-") > indent:
            requirements.append(item[2:].strip())
        elif inside and item and not item.startswith("#"):
            break
    return requirements


def unmet(requirements: list[str], folders: list[str]) -> list[str]:
    """What the packages found in `folders` lack, each said in a few words; empty if nothing."""
    problems = []
    for requirement in requirements:
        name, _, version = requirement.partition("==")
        if requirement.startswith("-e"):
            problems += unmet_own_library(folders)
            continue
        found = find_distribution(name, folders)
        if found is None:
            problems.append(f"{name} is not installed")
        elif found.version.partition("+")[0] != version:  # "2.14.1+cpu" is 2.14.1
            problems.append(f"{name} is {found.version}, not {version}")
    return problems


def unmet_own_library(folders: list[str]) -> list[str]:
    """Whether `import lib` means this clone: a copy would else run the code it was copied from."""
    found = find_distribution(OWN_DISTRIBUTION, folders)
    if found is None:
        return [f"{OWN_DISTRIBUTION} is not installed"]
    url = re.search(r'"url": *"([^"]*)"', found.read_text("direct_url.json") or "")
    folder = url2pathname(urlsplit(url[1]).path) if url else ""
    if not folder or Path(folder).resolve() != ROOT / "lib":
        return [f"{OWN_DISTRIBUTION} is that of {folder or 'no folder'}"]
    return []


def find_distribution(name: str, folders: list[str]) -> metadata.Distribution | None:
    """The distribution that an interpreter with this search path would use."""
    return next(iter(metadata.distributions(name=name, path=folders)), None)


def other_interpreter() -> Path | None:
    """The interpreter to hand over to, set up if need be; None if this one will do."""
    requirements = pip_list(ENVIRONMENT_LIST.read_text(encoding="utf-8"))
    in_venv = Path(sys.prefix).resolve() == VENV
    if not in_venv:
        problems = unmet(requirements, sys.path)
        if not problems:
            return None
        if sys.prefix != sys.base_prefix or (Path(sys.prefix) / "conda-meta").is_dir():
            more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
            say(f"Not using the active environment {sys.prefix}: {problems[0]}{more}.")
    if not unmet_in_venv(requirements):
        return None if in_venv else VENV_PYTHON
    with installation_lock() as lock:
        if unmet_in_venv(requirements):  # else another launch has just done it
            try:
                install(requirements, lock)
            except OSError as error:
                raise setup_error(
                    f"cannot set up {VENV}: {error}; see to disk or rights"
                ) from error
    return VENV_PYTHON


def unmet_in_venv(requirements: list[str]) -> list[str]:
    """As `unmet`, of `.venv`."""
    packages = venv_packages()
    if packages is None:
        return ["there is no working .venv"]
    if UNFINISHED.exists():
        return ["the installation into .venv was interrupted"]
    return unmet(requirements, [packages])


def venv_packages() -> str | None:
    """The folder where the interpreter of `.venv` has its packages; None if it does not run."""
    if Path(sys.prefix).resolve() == VENV:
        return sysconfig.get_path("purelib")
    question = "import sysconfig; print(sysconfig.get_path('purelib'))"
    answer = quietly([str(VENV_PYTHON), "-I", "-c", question])
    return answer.stdout.strip() if answer.returncode == 0 else None


def quietly(command: list[str], **options) -> subprocess.CompletedProcess:
    """Run a command and keep what it says; one that cannot be started has failed like any other."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, stdout="", stderr=str(error))


# Setting up


@contextlib.contextmanager
def installation_lock():
    """Let one launch at a time install. pip inherits the lock: it may outlive this process."""
    import fcntl

    path = ROOT / ".cache" / "environment.lock"
    try:
        path.parent.mkdir(exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        message = f"cannot write {path} ({error.strerror}); make the clone writable"
        raise setup_error(message) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another launch, which is setting up the environment …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def install(requirements: list[str], lock) -> None:
    """Bring `.venv` to the list: make it or take up an interrupted one, then let pip work."""
    if not made_here():
        if VENV.exists():
            say(f"Making {VENV} anew: it belongs to another folder, or was left half made.")
        else:
            say(f"Making the virtual environment {VENV}.")
        make_venv(lock)
    UNFINISHED.touch()
    remove_half_unpacked(Path(venv_packages() or VENV))
    say(
        f"Installing {len(requirements)} packages of environment.yml into .venv: about 3 GB to "
        "download, 6 GB on disk, some minutes; if interrupted, the same command goes on from there."
    )
    run_pip(requirements, lock)
    UNFINISHED.unlink()
    left = unmet_in_venv(requirements)
    if left:
        raise setup_error(f"pip ended well, yet in .venv {left[0]}; delete {VENV} and try again")
    say("The environment is ready.")


def run_pip(requirements: list[str], lock) -> None:
    """Install the list into `.venv`, pip showing its progress."""
    listed = VENV / "requirements.txt"
    listed.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    options = ["install", "--disable-pip-version-check", "--no-input", "-r", str(listed)]
    done = subprocess.run(
        [*pip_command(), *options],
        cwd=ROOT,  # the list says ./lib
        env={**clean_environment(), "PIP_USER": "0"},  # a personal `user = true` fails in a venv
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,  # standard output belongs to the command itself
        pass_fds=[lock.fileno()],
        check=False,
    )
    if done.returncode != 0:
        tried = "{}.{}".format(*sys.version_info)
        newer = "" if tried == "3.11" else f" (made for Python 3.11; this is {tried})"
        raise setup_error(
            f"pip could not install the packages{newer}; its last lines above say why: see to the "
            "network or the disk space, then give the same command again: it goes on from there"
        )


def setup_error(message: str) -> Exception:
    """An expected failure (imported late: on an old Python, `lib` must not be touched)."""
    from lib.errors import WorkbookError

    return WorkbookError(message)


def made_here() -> bool:
    """Whether `.venv` was made, to the end, for this folder: its last file says for which."""
    with contextlib.suppress(OSError):
        text = (VENV / "bin" / "activate").read_text(encoding="utf-8")
        return str(VENV) in text and venv_packages() is not None
    return False


def make_venv(lock) -> None:
    """Make an empty `.venv`, with its own pip if this Python can, otherwise without."""
    command = [base_python(), "-m", "venv", "--clear", str(VENV)]
    if quietly(command, pass_fds=[lock.fileno()]).returncode == 0:
        return
    # Debian's Python comes without ensurepip.
    bare = quietly([*command, "--without-pip"], pass_fds=[lock.fileno()])
    if bare.returncode != 0:
        reason = (bare.stderr.strip() or bare.stdout.strip() or "no reason given").splitlines()[-1]
        raise setup_error(
            f"cannot make {VENV}: {reason}; free disk space, make the clone writable, or install "
            "what `python3 -m venv` lacks (Debian, Ubuntu: apt-get install python3-venv)"
        )


def pip_command() -> list[str]:
    """pip of `.venv`, or else this Python's pip working on `.venv`."""
    inside = [str(VENV_PYTHON), "-m", "pip"]
    outside = [base_python(), "-m", "pip", "--python", str(VENV_PYTHON)]
    for command in (inside, outside):
        if quietly([*command, "--version"], env=clean_environment()).returncode == 0:
            return command
    raise setup_error(
        "this Python has neither pip nor ensurepip; install one of them "
        "(Debian, Ubuntu: apt-get install python3-venv python3-pip) and try again"
    )


def base_python() -> str:
    """This interpreter, or the one its virtual environment was made from: `.venv` may go."""
    return getattr(sys, "_base_executable", None) or sys.executable


def remove_half_unpacked(packages: Path) -> None:
    """Forget packages whose unpacking was killed: pip writes RECORD last, but would keep them."""
    for folder in packages.glob("*.dist-info"):
        if not (folder / "RECORD").exists():
            shutil.rmtree(folder)


def clean_environment() -> dict[str, str]:
    """This environment without the variables that would mix other packages in."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


def hand_over(python: Path, arguments: list[str]) -> None:
    """Become the other interpreter, doing the same; by path: the current folder does not matter."""
    sys.stdout.flush()
    sys.stderr.flush()
    command = [str(python), str(ROOT / "lib"), *arguments]
    os.execve(str(python), command, clean_environment())


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # neither lib/ itself nor the current folder
    sys.exit(main(sys.argv[1:]))
