"""Tables of measurements, saved with versions, hardware and commit, and figures beside them."""

import importlib.metadata
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
PACKAGES = (
    "jax",
    "jaxlib",
    "lineax",
    "equinox",
    "optax",
    "numpy",
    "scipy",
    "scikit-learn",
    "pyarrow",
)


def seconds(run: Callable[[], object], repeats: int) -> list[float]:
    """Wall-clock time of every repeat."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def reset_peak() -> int:
    """Forgets the process's peak memory and returns the present one, in bytes (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """Peak resident memory since `reset_peak`, in bytes (Linux)."""
    return _status("VmHWM")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {field}.")


def save(name: str, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], notes: str):
    """Prints a Markdown table and writes it to `results/NAME.md`; NAME may begin with a folder."""
    lines = [f"# {title}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    text = "\n".join([*lines, "", notes.strip(), "", _environment(), ""])
    _place(name, "md").write_text(text)
    print(text)


def figure(rows: int, columns: int, size: tuple[float, float], **shared: Any) -> Any:
    """A matplotlib figure and its axes, (rows, columns), in one style."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mpl.rcParams.update(STYLE)
    made = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(made)
    return made, made.subplots(rows, columns, squeeze=False, **shared)


def save_figure(name: str, made: Any) -> None:
    """Writes the figure to `results/NAME.png`."""
    made.savefig(_place(name, "png"), dpi=130)


def _place(name: str, suffix: str) -> Path:
    path = RESULTS / f"{name}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _environment() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    described = subprocess.run(git, check=False, capture_output=True, text=True)
    commit = described.stdout.strip() or "unknown"
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    return (
        f"{_processor()}, {os.cpu_count()} cores; {platform.system()}, Python "
        f"{platform.python_version()}; {versions}; commit {commit}; "
        f"{time.strftime('%Y-%m-%d')}."
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown processor"
