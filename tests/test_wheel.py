"""The wheel, installed as users install it: only `agentir` lands, and its programs start from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentir.cli import PROGRAMS

ROOT = Path(__file__).parent.parent
SOURCES = ["agentir", *PROGRAMS, "configs"]


@dataclass(frozen=True)
class Installed:
    """An environment that holds the wheel and, behind it, this environment's other packages.

    `landed` names what the installation alone put into site-packages.
    """

    wheel: Path
    bin: Path
    site: Path
    landed: list[str]

    def run(self, *command: str, cwd: Path) -> str:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]], cwd=cwd, env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True, with_pip=False)
    bin_, site = folder / "venv" / "bin", Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
    pip = [sys.executable, "-m", "pip", "--python", str(bin_ / "python"), "--disable-pip-version-check"]
    done = subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    landed = sorted(path.name for path in site.iterdir())
    # A folder that a .pth file names is appended as it is; its own .pth files, one of which names the checkout, stay unread.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(wheel=wheel, bin=bin_, site=site, landed=landed)


def test_only_agentir_lands(installed: Installed) -> None:
    name, version, _ = installed.wheel.name.split("-", maxsplit=2)
    assert installed.landed == ["agentir", f"{name}-{version}.dist-info"]


def test_every_source_file_is_in_the_wheel(installed: Installed) -> None:
    inside = set(zipfile.ZipFile(installed.wheel).namelist())
    wanted = {
        path.relative_to(ROOT)
        for name in SOURCES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    as_installed = {
        f"agentir/stages/{path}"
        if path.parts[0] in PROGRAMS
        else f"agentir/{path}"
        if path.parts[0] == "configs"
        else str(path)
        for path in wanted
    }
    assert as_installed - inside == set()
    assert {name for name in inside if name.startswith("agentir/")} - as_installed == set()
    assert "agentir/stages/eval/report.html.j2" in inside
    assert "agentir/sample/LICENSES.md" in inside
    assert any(name.startswith("agentir/configs/demo/") for name in inside)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in inside)


def test_the_wheel_is_what_runs(installed: Installed, tmp_path: Path) -> None:
    script = (
        "import agentir, agentir.demo, agentir.stages.synth.extract as extract, numpy\n"
        "print(agentir.__file__, extract.__file__, agentir.demo.configs_folder(), sep='\\n')"
    )
    package = installed.site / "agentir"
    assert installed.run("python", "-c", script, cwd=tmp_path).splitlines() == [
        str(package / "__init__.py"),
        str(package / "stages" / "synth" / "extract.py"),
        str(package / "configs" / "demo"),
    ]


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["index", "build", "--help"],
        ["synth", "extract", "--help"],
        ["eval", "report", "--help"],
        ["train", "--help"],
        ["demo", "--help"],
    ],
)
def test_programs_start_from_any_folder(installed: Installed, tmp_path: Path, argv: list[str]) -> None:
    text = installed.run("agentir", *argv, cwd=tmp_path)
    assert " ".join(["agentir", *argv[:-1]]) in text
    assert list(tmp_path.iterdir()) == []


def test_no_stage_name_is_importable(installed: Installed, tmp_path: Path) -> None:
    script = f"import importlib.util as u; print([n for n in {list(PROGRAMS)} if u.find_spec(n)])"
    assert installed.run("python", "-c", script, cwd=tmp_path).strip() == "[]"
