"""The launcher: which environment it takes, how it makes one, and what it says when it cannot."""

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lib import __main__ as launcher
from lib import commands
from lib.errors import WorkbookError
from lib.paths import ROOT

PYTHON = launcher.base_python()  # as on a machine where nothing has been set up
QUIETLY = launcher.quietly
TINY_LIST = "dependencies:\n  - pip:\n      - tiny==1.0\n"
STUB = """
import argparse, sys
def parse(arguments):
    return arguments
def execute(arguments):
    print(sys.prefix, arguments)
    return 3
"""


# The list and whether an environment has it


def test_list_is_the_pip_part_and_nothing_else():
    text = """name: x
dependencies:
  - python=3.11
  - pip=26.1
  - pip:
      # numbers
      - numpy==2.4.6  # the arrays

      - torch==2.14.1
      - -e ./lib
  - git
variables:
  - a==1
"""
    assert launcher.pip_list(text) == ["numpy==2.4.6", "torch==2.14.1", "-e ./lib"]


def test_every_package_of_the_real_list_is_pinned_once():
    *packages, own = launcher.pip_list((ROOT / "environment.yml").read_text())
    names = [package.split("==")[0] for package in packages]
    assert own == "-e ./lib"
    assert all(len(package.split("==")) == 2 for package in packages)
    assert len(set(names)) == len(names) > 30


def install_fake(folder, name, version, direct_url=None):
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if direct_url:
        (info / "direct_url.json").write_text(
            f'{{"dir_info": {{"editable": true}}, "url": "{direct_url}"}}'
        )


def test_local_part_of_a_version_does_not_count(tmp_path):
    install_fake(tmp_path, "torch", "2.14.1+cpu")
    assert launcher.unmet(["torch==2.14.1"], [str(tmp_path)]) == []


def test_missing_and_other_versions_are_named(tmp_path):
    install_fake(tmp_path, "dp-accounting", "0.5.0")
    found = launcher.unmet(["dp-accounting==0.6.0", "numpy==2.4.6"], [str(tmp_path)])
    assert found == ["dp-accounting is 0.5.0, not 0.6.0", "numpy is not installed"]


def test_first_folder_of_the_path_wins(tmp_path):
    install_fake(tmp_path / "first", "numpy", "1.26.4")
    install_fake(tmp_path / "second", "numpy", "2.4.6")
    folders = [str(tmp_path / "first"), str(tmp_path / "second")]
    assert launcher.unmet(["numpy==2.4.6"], folders) == ["numpy is 1.26.4, not 2.4.6"]


def test_library_must_be_this_clones(tmp_path, monkeypatch):
    clone = tmp_path / "my clone"
    monkeypatch.setattr(launcher, "ROOT", clone)
    packages = [str(tmp_path / "packages")]
    assert launcher.unmet(["-e ./lib"], packages) == ["dp-workbook is not installed"]
    url = f"{clone.as_uri()}/lib"
    assert "%20" in url
    install_fake(tmp_path / "packages", "dp-workbook", "0.1.0", direct_url=url)
    assert launcher.unmet(["-e ./lib"], packages) == []
    monkeypatch.setattr(launcher, "ROOT", tmp_path / "copy")
    assert launcher.unmet(["-e ./lib"], packages) == [f"dp-workbook is that of {clone}/lib"]


def test_a_library_from_a_wheel_is_not_this_clones(tmp_path):
    install_fake(tmp_path, "dp-workbook", "0.1.0")
    assert launcher.unmet(["-e ./lib"], [str(tmp_path)]) == ["dp-workbook is that of no folder"]


@pytest.fixture
def choices(monkeypatch, tmp_path):
    """A launcher that finds what the test says, and records whether it installed."""
    said = {"here": [], "venv": [], "installed": 0}

    def install(requirements, lock):
        said["installed"] += 1
        said["venv"] = []

    monkeypatch.setattr(launcher, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(launcher, "VENV_PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(launcher, "ROOT", tmp_path)
    monkeypatch.setattr(launcher, "unmet", lambda requirements, folders: said["here"])
    monkeypatch.setattr(launcher, "unmet_in_venv", lambda requirements: said["venv"])
    monkeypatch.setattr(launcher, "install", install)
    return said


def test_complete_interpreter_is_used_as_it_is(choices):
    assert launcher.other_interpreter() is None
    assert choices["installed"] == 0


def test_complete_venv_takes_over_and_the_reason_is_told(choices, capsys, monkeypatch):
    choices["here"] = ["numpy is not installed", "torch is not installed"]
    monkeypatch.setattr(sys, "prefix", "/opt/conda")
    assert launcher.other_interpreter() == launcher.VENV_PYTHON
    assert choices["installed"] == 0
    told = capsys.readouterr().err
    assert told == (
        "Not using the active environment /opt/conda: numpy is not installed, and 1 more.\n"
    )


def test_nothing_complete_is_set_up(choices):
    choices["here"] = choices["venv"] = ["numpy is not installed"]
    assert launcher.other_interpreter() == launcher.VENV_PYTHON
    assert choices["installed"] == 1


def test_half_installed_active_venv_is_completed_and_started_anew(choices, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(launcher.VENV))
    assert launcher.other_interpreter() is None
    choices["venv"] = ["the installation into .venv was interrupted"]
    assert launcher.other_interpreter() == launcher.VENV_PYTHON
    assert choices["installed"] == 1


def test_full_disk_is_told_in_one_line(choices, monkeypatch):
    def install(requirements, lock):
        raise OSError(28, "No space left on device")

    choices["here"] = choices["venv"] = ["numpy is not installed"]
    monkeypatch.setattr(launcher, "install", install)
    with pytest.raises(WorkbookError, match="No space left on device"):
        launcher.other_interpreter()


def test_handing_over_is_by_path_and_drops_foreign_search_paths(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execve", lambda *call: calls.append(call))
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    launcher.hand_over(Path("/clone/.venv/bin/python"), ["run", "-p", "seed", "7"])
    [(program, command, environment)] = calls
    assert program == "/clone/.venv/bin/python"
    assert command == [program, str(ROOT / "lib"), "run", "-p", "seed", "7"]
    assert "PYTHONPATH" not in environment
    assert environment["PATH"] == os.environ["PATH"]


# What main makes of an end


@pytest.fixture
def ending(monkeypatch):
    """Let the command end as the test says."""
    monkeypatch.setattr(launcher, "other_interpreter", lambda: None)

    def set_ending(error=None, code=0):
        def execute(request):
            if error:
                raise error
            return code

        monkeypatch.setattr(commands, "execute", execute)

    return set_ending


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (WorkbookError("epsilon = 0; allowed: above 0"), 2, "epsilon = 0; allowed: above 0\n"),
        (
            KeyboardInterrupt(),
            130,
            launcher.INTERRUPTED + "\n",
        ),
    ],
)
def test_expected_ends_are_one_line(ending, capsys, error, code, line):
    ending(error)
    assert launcher.main(["verify"]) == code
    assert capsys.readouterr().err == line


def test_a_bug_keeps_its_traceback(ending):
    ending(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        launcher.main(["verify"])


def test_exit_code_is_the_commands(ending):
    ending(code=5)
    assert launcher.main(["verify"]) == 5


@pytest.mark.parametrize("version", [(3, 10, 4), (3, 11, 2)])
def test_old_python_is_refused_in_one_line(version, monkeypatch, capsys):
    """3.11.2 came as far as a pinned package that has no release for it."""
    monkeypatch.setattr(sys, "version_info", version)
    assert launcher.main(["run"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"found Python {'.'.join(map(str, version))} on" in told


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_old_python_can_read_what_refuses_it(name):
    ast.parse((ROOT / "lib" / name).read_text(), feature_version=(3, 7))


# From outside, as a person starts it


def start(*arguments, folder=ROOT / "lib", cwd="/", options=(), **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
    return subprocess.run(
        [PYTHON, *options, str(folder), *arguments],
        cwd=cwd,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def bare_clone(folder):
    """A clone with the real code that runs before the environment stands, and no `.venv`."""
    (folder / "lib").mkdir(parents=True)
    for name in ("__init__", "__main__", "commands", "errors", "paths"):
        shutil.copy(ROOT / "lib" / f"{name}.py", folder / "lib")
    shutil.copy(ROOT / "environment.yml", folder)
    return folder


@pytest.mark.parametrize("arguments", [[], ["--help"], ["run", "--help"], ["test", "--help"]])
def test_help_installs_nothing(tmp_path, arguments):
    clone = bare_clone(tmp_path / "a clone")
    done = start(*arguments, folder=clone / "lib", options=["-S"])  # -S: no installed package
    assert done.returncode == 0
    assert done.stdout.startswith("usage: python3 -m lib")
    assert done.stderr == ""
    assert sorted(path.name for path in clone.iterdir()) == ["environment.yml", "lib"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["rnu"], "'rnu'"),
        (["run", "--study", "no_such"], "'no_such'"),
        (["run", "--profile", "huge"], "'huge'"),
        (["run", "--version", "final"], "'final'"),
        (["run", "--jobs", "many"], "'many'"),
        (["run", "-p", "seed"], "-p"),
        (["verify", "--colour"], "--colour"),
    ],
)
def test_wrong_arguments_are_one_line_before_any_installation(tmp_path, arguments, part):
    clone = bare_clone(tmp_path / "clone")
    done = start(*arguments, folder=clone / "lib", options=["-S"])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert part in done.stderr
    assert not (clone / ".venv").exists()


def test_module_and_path_start_the_same(tmp_path):
    by_module = subprocess.run(
        [PYTHON, "-m", "lib", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert by_module.stdout == start("--help", cwd=tmp_path).stdout


# Making an environment, with one tiny package instead of the long list


def wheel(folder):
    """A package of one module that needs no network."""
    folder.mkdir()
    info = "tiny-1.0.dist-info"
    files = {
        "tiny.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in files))


def tiny_clone(folder):
    """A clone whose list is one package and whose command tells where it runs."""
    clone = bare_clone(folder / "a clone")
    (clone / "lib" / "commands.py").write_text(STUB)
    (clone / "environment.yml").write_text(TINY_LIST)
    wheel(folder / "wheels")
    return clone


def offline(clone):
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(clone.parent / "wheels")}


def launch(clone, *arguments):
    return start(*arguments, folder=clone / "lib", **offline(clone))


@pytest.fixture(scope="module")
def first_launch(tmp_path_factory):
    """A clone, and what its first launch, which made the environment, said."""
    clone = tiny_clone(tmp_path_factory.mktemp("first"))
    return clone, launch(clone, "run", "--jobs", "2")


@pytest.fixture
def installed(first_launch):
    """A clone with its environment, put right again after the test."""
    clone, _ = first_launch
    yield clone
    (clone / "environment.yml").write_text(TINY_LIST)
    (clone / ".venv" / "unfinished").unlink(missing_ok=True)


def test_environment_is_made_and_taken_over(first_launch):
    clone, done = first_launch
    assert done.returncode == 3
    assert done.stdout == f"{clone / '.venv'} ['run', '--jobs', '2']\n"
    assert "Installing 1 packages" in done.stderr


def test_environment_is_made_once(installed):
    done = launch(installed, "run")
    assert done.stdout == f"{installed / '.venv'} ['run']\n"
    assert done.stderr == ""


def test_killed_installation_is_taken_up(installed):
    venv = installed / ".venv"
    made = (venv / "pyvenv.cfg").stat().st_mtime_ns
    [info] = venv.glob("lib/python*/site-packages/tiny-1.0.dist-info")
    (info / "RECORD").unlink()  # pip writes it last
    info.with_name("tiny.py").unlink()
    (venv / "unfinished").touch()
    done = launch(installed)
    assert done.returncode == 3
    assert info.with_name("tiny.py").exists()
    assert not (venv / "unfinished").exists()
    assert (venv / "pyvenv.cfg").stat().st_mtime_ns == made, "the .venv was thrown away"
    assert launch(installed).stderr == ""


def test_copied_clone_does_not_use_the_environment_of_the_old_one(installed, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(installed, copy, symlinks=True)
    shutil.copytree(installed.parent / "wheels", tmp_path / "wheels")
    (copy / ".venv" / "unfinished").touch()  # this list lacks the library, which would tell
    done = launch(copy)
    assert done.stdout == f"{copy / '.venv'} []\n"
    assert f"Making {copy / '.venv'} anew" in done.stderr
    assert str(copy) in (copy / ".venv" / "bin" / "activate").read_text()


def test_failing_pip_ends_in_one_line_that_says_what_to_do(installed):
    (installed / "environment.yml").write_text(TINY_LIST + "      - absent==1.0\n")
    done = launch(installed)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("pip could not install the packages")
    assert "same command again" in last
    assert done.stdout == ""


def test_two_launches_at_once_install_once(tmp_path):
    clone = tiny_clone(tmp_path)
    runs = [
        subprocess.Popen(
            [PYTHON, str(clone / "lib")],
            env={**os.environ, **offline(clone)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ends = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [3, 3]
    assert sum("Installing" in told for _, told in ends) == 1


def without_ensurepip(command, **options):
    """As on Debian, where `python3 -m venv` fails for want of ensurepip."""
    if "venv" in command and "--without-pip" not in command:
        return subprocess.CompletedProcess(
            command, 1, stdout="ensurepip is not available", stderr=""
        )
    return QUIETLY(command, **options)


def test_python_without_ensurepip_lends_its_own_pip(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(launcher, "VENV_PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(launcher, "quietly", without_ensurepip)
    with (tmp_path / "lock").open("w") as lock:
        launcher.make_venv(lock)
    command = launcher.pip_command()
    assert command == [PYTHON, "-m", "pip", "--python", str(launcher.VENV_PYTHON)]
    wheel(tmp_path / "wheels")
    options = ["--quiet", "--no-index", "--find-links", str(tmp_path / "wheels")]
    subprocess.run([*command, "install", *options, "tiny==1.0"], check=True)
    assert list(launcher.VENV.glob("lib/python*/site-packages/tiny.py"))


def test_python_without_venv_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "VENV", tmp_path / ".venv")
    answer = subprocess.CompletedProcess([], 1, stdout="", stderr="No module named venv\n")
    monkeypatch.setattr(launcher, "quietly", lambda command, **options: answer)
    with (tmp_path / "lock").open("w") as lock, pytest.raises(WorkbookError) as refusal:
        launcher.make_venv(lock)
    assert "No module named venv" in str(refusal.value)
    assert "python3-venv" in str(refusal.value)


def test_reader_that_went_away_is_no_bug(tmp_path):
    clone = bare_clone(tmp_path)
    (clone / "environment.yml").write_text("dependencies:\n  - pip:\n")
    (clone / "lib" / "commands.py").write_text(
        "def parse(arguments):\n    return arguments\n"
        "def execute(arguments):\n    print('x' * 1_000_000)\n    return 0\n"
    )
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [PYTHON, str(clone / "lib")],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == ""
