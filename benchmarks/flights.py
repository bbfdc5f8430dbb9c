"""Three million flights through `linmodels fit`, against a hand-written streamed Gram.

    LINMODELS_DATA=/path/to/data python benchmarks/flights.py

Target: the delay; hour and weekday of departure, distance, origin and destination one-hot. Both
run in processes of their own; memory is each one's peak above that of a process which only imports
what it uses. The limit is what a person would write with NumPy for this one table: no prior, no
intercept handling, no evidence, no error messages.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import _report as report

TABLE = "tables/flights-3m.parquet"
ROWS_AT_ONCE = 16_384
FIT = ["--target", "delay", "--holdout", "0.1"]


def streamed_gram(path: Path) -> None:
    """The limit: one-hot rows in float32 blocks, their Gram in float64, and one solve."""
    import numpy as np
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    codes: dict[str, dict[str, int]] = {"origin": {}, "destination": {}}
    for batch in file.iter_batches(ROWS_AT_ONCE, columns=list(codes)):
        for name, table in codes.items():
            for value in batch[name].unique().to_pylist():
                table.setdefault(value, len(table))
    starts = np.cumsum([2, 24, 7, len(codes["origin"])])
    width = int(starts[-1]) + len(codes["destination"])
    gram, cross = np.zeros((width, width)), np.zeros(width)
    for batch in file.iter_batches(ROWS_AT_ONCE):
        x = np.zeros((batch.num_rows, width), np.float32)
        hours = batch["date"].to_numpy(zero_copy_only=False).astype("datetime64[h]").astype(int)
        x[:, 0], x[:, 1] = 1, batch["distance"].to_numpy() / 1000
        labels = [hours % 24, hours // 24 % 7]
        for name, table in codes.items():
            encoded = batch[name].dictionary_encode()
            order = np.array([table[value] for value in encoded.dictionary.to_pylist()])
            labels.append(order[encoded.indices.to_numpy()])
        for start, label in zip(starts, labels, strict=True):
            x[np.arange(len(x)), start + label] = 1
        gram += x.T @ x
        cross += x.T @ batch["delay"].to_numpy().astype(np.float32)
    np.linalg.solve(gram + np.eye(width), cross)


def run(command: list[str]) -> dict:
    """Seconds, peak memory and output of a process."""
    script = (
        "import json, resource, subprocess, sys, time\n"
        "start = time.perf_counter()\n"
        "done = subprocess.run(sys.argv[1:], capture_output=True, text=True)\n"
        "took = time.perf_counter() - start\n"
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024\n"
        "print(json.dumps([took, peak, done.returncode, done.stdout, done.stderr]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *command], check=True, capture_output=True, text=True
    )
    took, peak, code, out, err = json.loads(done.stdout)
    if code:
        raise RuntimeError(f"{command} failed: {err}")
    return {"seconds": took, "peak": peak, "output": out}


def main() -> None:
    """Runs both and saves the table."""
    path = Path(os.environ["LINMODELS_DATA"]) / TABLE
    if sys.argv[1:] == ["limit"]:
        streamed_gram(path)
        return
    imports = "import jax.numpy, lineax, linmodels, linmodels.cli, pyarrow.parquet"
    ours_idle = run([sys.executable, "-c", imports + "; jax.numpy.zeros(1)"])["peak"]
    limit_idle = run([sys.executable, "-c", "import numpy, pyarrow.parquet"])["peak"]
    ours = run([sys.executable, "-m", "linmodels.cli", "fit", str(path), *FIT])
    limit = run([sys.executable, __file__, "limit"])
    megabytes = lambda result, idle: f"{(result['peak'] - idle) / 1e6:.0f} MB"
    rows = [
        ["linmodels fit", f"{ours['seconds']:.1f} s", megabytes(ours, ours_idle)],
        ["streamed Gram by hand", f"{limit['seconds']:.1f} s", megabytes(limit, limit_idle)],
        ["ratio", f"{ours['seconds'] / limit['seconds']:.2f}×", ""],
    ]
    notes = f"What it printed:\n\n```\n{ours['output'].strip()}\n```"
    header = ["3,000,000 flights", "time", "memory above imports"]
    report.save("flights", "A large table through the command line", header, rows, notes)


if __name__ == "__main__":
    main()
