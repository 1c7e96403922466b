"""Tests ci/bench_compare on reports that are made up: programs that print them instead of timing anything."""

import json
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).resolve().parent / "bench_compare"

# Run number i (counted in a file) reports the i-th times; every run appends its tag to a log that both programs share.
PROGRAM = """#!{python}
import json, pathlib, re, sys
here = pathlib.Path(__file__)
times = {times}
flags = dict(a.lstrip("-").split("=", 1) for a in sys.argv[1:])
names = [n for n in times if re.search(flags["benchmark_filter"], n)]
if "benchmark_list_tests" in flags:
    print("\\n".join(names) or "Failed to match any benchmarks against regex: x")
    sys.exit(0)
log = here.parent.parent.parent / "log"
lines = log.read_text().split() if log.exists() else []
run = lines.count("{tag}")
log.write_text(" ".join(lines + ["{tag}"]))
entries = [dict(name=n, run_type="iteration", real_time=t[run % len(t)], cpu_time=t[run % len(t)] * {cpu}, time_unit="us") for n, t in
           ((n, times[n]) for n in names)]
entries.append(dict(name="BM_A_mean", run_type="aggregate", real_time=1, cpu_time=1, time_unit="us"))
print(json.dumps(dict(benchmarks=entries)))
sys.exit({status})
"""


def write_program(root, tree, name, times, cpu=1, status=0):
    path = root / tree / "bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PROGRAM.format(python=sys.executable, times=repr(times), tag=tree, cpu=cpu, status=status))
    path.chmod(0o755)
    return path


def compare(*arguments):
    return subprocess.run([sys.executable, str(SCRIPT)] + [str(a) for a in arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def expect(condition, result, what):
    assert condition, f"{what}\nexit {result.returncode}\n{result.stdout}{result.stderr}"


def test_ratios_and_spread(root):
    write_program(root, "old", "x_bench", {"BM_A": [10, 20, 40, 10], "BM_B": [8], "BM_Gone": [1]})
    write_program(root, "new", "x_bench", {"BM_A": [15, 20, 80, 10], "BM_B": [4], "BM_Added": [1]})
    write_program(root, "old", "y_bench", {"BM_C": [1]})
    table = root / "table.json"
    result = compare(root / "old", root / "new", "--rounds", 4, "--json", table)
    expect(result.returncode == 0, result, "ratios alone never fail")
    rows = {row["name"]: row for row in json.loads(table.read_text())["benchmarks"]}
    expect(set(rows) == {"BM_A", "BM_B"}, result, "what both have, aggregates left out")
    # Rounds 1.5, 1, 2, 1: sorted 1, 1, 1.5, 2.
    expect((rows["BM_A"]["ratio"], rows["BM_A"]["low"], rows["BM_A"]["high"]) == (1.25, 1.0, 1.625), result, "median and quartiles")
    expect(rows["BM_A"]["old_ns"] == 15000 and rows["BM_A"]["new_ns"] == 17500, result, "medians in nanoseconds")
    expect(rows["BM_B"]["ratio"] == 0.5 and "faster" in result.stdout, result, "a ratio that says something")
    expect("slower" not in result.stdout, result, "rounds that do not agree say nothing")
    expect(all(name in result.stdout.splitlines()[-1] for name in ("BM_Gone", "BM_Added", "y_bench")), result, "what one build lacks")
    expect((root / "log").read_text().split() == ["old", "new", "new", "old", "old", "new", "new", "old"], result, "turns")


def test_fail_above(root):
    old = write_program(root, "old", "x_bench", {"BM_A": [10], "BM_B": [10]})
    new = write_program(root, "new", "x_bench", {"BM_A": [12], "BM_B": [30]})
    for limit, status in ((3.5, 0), (3.0, 0), (2.9, 1), (1.1, 1)):
        result = compare(old, new, "--rounds", 1, "--fail-above", limit)
        expect(result.returncode == status, result, f"limit {limit}")
    result = compare(old, new, "--rounds", 1, "--fail-above", 1.5, "--filter", "BM_A")
    expect(result.returncode == 0 and "BM_B" not in result.stdout, result, "the filter decides what counts")


def test_clocks(root):
    name = "BM_A/manual_time"
    old = write_program(root, "old", "x_bench", {name: [10], "BM_B": [10]}, cpu=1)
    new = write_program(root, "new", "x_bench", {name: [10], "BM_B": [10]}, cpu=2)
    table = root / "table.json"
    result = compare(old, new, "--rounds", 2, "--json", table)
    rows = {row["name"]: row["ratio"] for row in json.loads(table.read_text())["benchmarks"]}
    expect(rows == {name: 1.0, "BM_B": 2.0}, result, "CPU time unless the benchmark times itself")


def test_a_build_against_itself(root):
    program = write_program(root, "old", "x_bench", {"BM_A": [10, 20]})
    table = root / "table.json"
    result = compare(program, program, "--rounds", 2, "--json", table)
    row = json.loads(table.read_text())["benchmarks"][0]
    expect((row["ratio"], row["low"], row["high"]) == (1.25, 0.875, 1.625), result, "noise shows: rounds of 2 and 0.5")


def test_bad_usage(root):
    old = write_program(root, "old", "x_bench", {"BM_A": [10]})
    broken = write_program(root, "broken", "x_bench", {"BM_A": [10]}, status=3)
    (root / "empty" / "bin").mkdir(parents=True)
    for arguments, word in (
        ((root / "absent", old), "absent"),
        ((root / "old", old), "two build trees or two"),
        ((root / "old", root / "empty"), "bin/*_bench"),
        ((old, old, "--filter", "Nothing"), "--filter"),
        ((old, old, "--rounds", 0), "--rounds"),
        ((old, broken), "exit status 0, got 3"),
    ):
        result = compare(*arguments)
        expect(result.returncode == 2 and word in result.stderr and "Traceback" not in result.stderr, result, f"{word} is named")


def main():
    for test in (test_ratios_and_spread, test_fail_above, test_clocks, test_a_build_against_itself, test_bad_usage):
        with tempfile.TemporaryDirectory() as folder:
            test(pathlib.Path(folder))
    print("bench_compare compares")


if __name__ == "__main__":
    main()
