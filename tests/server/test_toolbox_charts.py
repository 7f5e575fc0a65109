"""Charts of snippets, as the official SDK parses them, with a real matplotlib that a client brings along."""

import asyncio
import contextlib
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from daytona import (
    AsyncDaytona,
    BarChart,
    BoxAndWhiskerChart,
    ChartType,
    CodeRunParams,
    CompositeChart,
    CreateSandboxFromSnapshotParams,
    Daytona,
    LineChart,
    PieChart,
    Sandbox,
    ScatterChart,
)

from corral.backends.embedded import EmbeddedBackend
from corral.backends.embedded.packages import packages_folder
from corral.spec import Spec
from support.project import ROOT, read_blocks
from support.warm import run_program

pytestmark = pytest.mark.needs_network

BROUGHT = "/home/daytona/brought"

# As the SDK's own documentation plots: one after the other, each shown.
CODE = """
import matplotlib.pyplot as plt
import numpy as np
print("before")
x = np.linspace(0, 10, 30)
plt.figure(figsize=(8, 5))
plt.plot(x, np.sin(x), "b-", linewidth=2, label="wave")
plt.title("Line Chart")
plt.xlabel("X-axis (seconds)")
plt.ylabel("Y-axis (amplitude)")
plt.grid(True)
plt.show()
plt.scatter([1, 2], [3, 4])
plt.show()
plt.bar(["a", "b"], [1, 2.5])
plt.show()
plt.pie([25, 75], labels=["p", "q"])
plt.show()
plt.boxplot([[1, 2, 3, 4, 100]])
plt.show()
figure, (left, right) = plt.subplots(1, 2)
left.plot([1, 2])
right.bar(["x"], [3])
plt.show()
print("after")
"""


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of the engine with matplotlib among its packages."""
    folder = tmp_path_factory.mktemp("data")

    async def bring() -> None:
        async with contextlib.aclosing(EmbeddedBackend(folder)) as backend:
            await (await backend.create(Spec(packages=("matplotlib",)))).aclose()

    asyncio.run(bring())
    return folder


@pytest.fixture(scope="module")
def plotting(daytona: Daytona, data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox to which a client has brought matplotlib."""
    packages = packages_folder(data_folder, ("matplotlib",))
    archive = tmp_path_factory.mktemp("packages") / "packages.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(packages, ".")
    box = daytona.create(CreateSandboxFromSnapshotParams(env_vars={"PYTHONPATH": BROUGHT}))
    box.fs.upload_file(str(archive), "/tmp/packages.tar")
    unpacked = box.process.exec(f"mkdir {BROUGHT} && tar -C {BROUGHT} -xf /tmp/packages.tar && rm /tmp/packages.tar")
    assert unpacked.exit_code == 0, unpacked.result
    yield box
    daytona.delete(box)


def check(response: object) -> None:
    assert response.exit_code == 0, response  # type: ignore[attr-defined]
    assert response.result == response.artifacts.stdout == "before\nafter\n"  # type: ignore[attr-defined]
    charts = response.artifacts.charts  # type: ignore[attr-defined]
    kinds = [LineChart, ScatterChart, BarChart, PieChart, BoxAndWhiskerChart, CompositeChart]
    assert [type(chart) for chart in charts] == kinds
    assert all(chart.png.startswith("iVBOR") for chart in charts)
    line, scatter, bar, pie, whisker, composite = charts
    assert (line.type, line.title, line.x_label) == (ChartType.LINE, "Line Chart", "X-axis (seconds)")
    assert (line.y_label, line.x_scale, line.y_scale) == ("Y-axis (amplitude)", "linear", "linear")
    assert line.x_ticks == [0, 2, 4, 6, 8, 10]
    assert line.x_tick_labels == ["0", "2", "4", "6", "8", "10"]
    assert (line.elements[0].label, len(line.elements[0].points)) == ("wave", 30)
    assert line.elements[0].points[0] == [0, 0]
    assert (scatter.title, scatter.elements[0].points) == ("", [[1, 3], [2, 4]])
    assert [(each.label, each.value) for each in bar.elements] == [("a", "1"), ("b", "2.5")]
    assert [(each.label, each.angle) for each in pie.elements] == [("p", 90), ("q", 270)]
    (box,) = whisker.elements
    assert (box.min, box.first_quartile, box.median, box.third_quartile, box.max) == (1, 2, 3, 4, 4)
    assert box.outliers == [100]
    assert [each.type for each in composite.elements] == ["line", "bar"]


async def test_charts_are_of_the_clients_own_types(plotting: Sandbox, async_daytona: AsyncDaytona) -> None:
    check(await asyncio.to_thread(plotting.process.code_run, CODE))
    box = await async_daytona.get(plotting.id)
    check(await box.process.code_run(CODE))


def test_a_snippet_that_fails_keeps_the_charts_it_had(plotting: Sandbox) -> None:
    code = "import sys\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nsys.exit(len(sys.argv))"
    response = plotting.process.code_run(code, CodeRunParams(argv=["a", "b"]))
    assert (response.exit_code, response.result) == (3, "")
    assert [type(chart) for chart in response.artifacts.charts] == [LineChart]


def test_an_interpreter_plots_without_a_word(plotting: Sandbox) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nprint(plt.get_fignums())"
    result = plotting.code_interpreter.run_code(code)
    assert (result.stdout, result.stderr, result.error) == ("[]\n", "", None)


def test_the_page_on_charts_prints_what_it_shows(data_folder: Path, tmp_path: Path) -> None:
    program, shown = read_blocks(ROOT / "docs" / "charts.md")[:2]
    file = tmp_path / "snippet.py"
    file.write_text(program.text, encoding="utf-8")
    done = run_program(file, cwd=tmp_path, env=os.environ | {"CORRAL_DATA_DIR": str(data_folder)})
    assert (done.returncode, done.stdout) == (0, shown.text), done.stderr
