"""What CI has no time for, on every core of a large machine: sanitizers over the whole tree, every split, long exact tails, full matrices,
every thread count, scaling. Steps share the machine; one that hangs is ended after half an hour.

    ci/long_checks.py [--out DIR] [--small] [--only STEP ...]

Prints a line a step and leaves DIR/summary.txt and the logs (default build/long-checks). Exits with 1 if a step failed. --small runs
each step at toy size.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = [f"tiny-{family}-{form}" for family in ("v4", "v41") for form in ("native", "mul1", "mixed")]
RELEASE = ROOT / "build/long-release"
RELEASE_TARGETS = ["lockstep", "every_split", "exact_tail_test"]
TSAN_TARGETS = [
    "cpu_stream_test", "scheduler_test", "fast_test", "invariance_test", "exact_tail_test", "selftest_test", "schedule_fuzz_replay", "lockstep",
]
TSAN_FOLDERS = ["kernels/device", "fast", "harness/invariance", "harness/selftest"]
# They repeat code that shorter tests run too over more tokens, need fetched data, or (allocation counts) are not for sanitizers.
TOO_LONG = "Accuracy|ChunkSizeTest|WholePrefill|ChunkedPrefill|SampledPrefill|FiftyDraws|LongPrompt|^golden|^text|^chat|SteadyState|NOT_BUILT"


STEP_SECONDS = 1800


class Failed(Exception):
    """A step that ended with another status than 0, or not in time."""


class Runner:
    def __init__(self, out, small):
        self.out, self.small, self.failed = out, small, []
        self.lock = threading.Lock()
        # ThreadSanitizer cannot live with the address randomization of newer kernels.
        fixed = ["setarch", os.uname().machine, "-R"]
        self.prefix = fixed if subprocess.run([*fixed, "true"], check=False, capture_output=True).returncode == 0 else []

    def run(self, command, log, deadline, env=None):
        """Appends the output to `log`; Failed after `deadline` (of time.monotonic) or for another status than 0."""
        with open(log, "ab") as file:
            process = subprocess.Popen([*self.prefix, *map(str, command)], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT,
                                       env={**os.environ, **(env or {})}, start_new_session=True)
            try:
                status = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise Failed("out of time") from error
        if status != 0:
            raise Failed(f"exit {status}")

    def step(self, name, work):
        """work(log, deadline) returns a line for the summary or None."""
        log, begin = self.out / f"{name}.log", time.monotonic()
        log.unlink(missing_ok=True)
        try:
            note, verdict = work(log, begin + STEP_SECONDS), "passed"
        except Failed as failure:
            note, verdict = str(failure), "FAILED"
        line = f"{name:<16}{time.monotonic() - begin:7.1f} s  {verdict}  {note or last_line(log)}"
        with self.lock:
            print(line, flush=True)
            with open(self.out / "summary.txt", "a", encoding="utf-8") as summary:
                summary.write(line + "\n")
            if verdict == "FAILED":
                self.failed.append(name)
        return verdict == "passed"


def last_line(log):
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-1].strip() if lines else ""


def together(works):
    """Runs all, then raises the first failure."""
    failures = []

    def guarded(work):
        try:
            work()
        except Failed as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def cmake_flags(preset):
    for entry in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]:
        if entry["name"] == preset:
            return [f"-D{name}={value}" for name, value in entry["cacheVariables"].items()]
    raise KeyError(preset)


def build(runner, directory, flags, targets):
    def work(log, deadline):
        runner.run(["cmake", "-G", "Ninja", "-S", ".", "-B", directory, "-DLOCKSTEP_BENCHES=OFF", *flags], log, deadline)
        runner.run(["ninja", "-C", directory, *targets], log, deadline)
    return work


def token_file(runner, tokens):
    path = runner.out / f"ids{tokens}.json"
    path.write_text(json.dumps([(i * i * 7 + i) % 251 + 3 for i in range(tokens)]))
    return path


def splits(runner):
    def work(log, deadline):
        shorter = 15 if runner.small else 1
        for tokens, flags in ((300, []), (150, ["--profile", "all", "--model", "oracles"])):
            runner.run([RELEASE / "bin/every_split", "--tokens", tokens // shorter, *flags], log, deadline)
        lines = [line for line in log.read_text().splitlines() if " splits, " in line]
        return f"{len(lines)} models and profiles, {sum(' 0 differ' in line for line in lines)} without a difference"
    return work


def exact_tail(runner):
    lengths = [3000] if runner.small else [10000, 30000, 60000]

    def work(log, deadline):
        def one(tokens):
            runner.run([RELEASE / "bin/exact_tail_test", "--gtest_filter=*LongPromptTest*"], f"{log}.{tokens}", deadline,
                       {"LOCKSTEP_TAIL_TOKENS": str(tokens)})
        together([lambda t=t: one(t) for t in lengths])
        text = "".join(pathlib.Path(f"{log}.{t}").read_text() for t in lengths)
        log.write_text("".join(sorted(set(re.findall(r"^window .*\n", text, re.MULTILINE)))))
        return f"{text.count('[       OK ]')} tests passed"
    return work


def matrix(runner):
    """On one CPU device, and with every number of threads, instruction set and pretend device."""
    def work(log, deadline):
        def one(model, flags):
            runner.run([RELEASE / "lockstep", "check", "--matrix", "full", "--model", f"golden/models/{model}", "--golden", "golden", *flags],
                       f"{log}.{model}{len(flags)}", deadline)
        runs = [(m, f) for m in (MODELS[4:5] if runner.small else MODELS) for f in (["--device", "cpu"], [])]
        together([lambda run=run: one(*run) for run in runs])
        log.write_text("".join(f"{m} {' '.join(f)}: {last_line(pathlib.Path(f'{log}.{m}{len(f)}'))}\n" for m, f in runs))
        return None
    return work


def thread_bits(runner):
    """Logits of one to eight threads, compared as files."""
    def work(log, deadline):
        ids, compared = token_file(runner, 40 if runner.small else 200), 0
        for model in MODELS:
            for profile in ("sm90", "fma"):
                rows = []
                for threads in range(1, 9):
                    out = runner.out / "logits.f32"
                    runner.run([RELEASE / "lockstep", "logits", "--model", f"golden/models/{model}", "--ids", ids, "--profile", profile,
                                "--device", f"cpu:1,threads={threads}", "--out", out], log, deadline)
                    rows.append(out.read_bytes())
                if any(row != rows[0] for row in rows):
                    raise Failed(f"{model} {profile}: logits depend on the number of threads")
                compared += len(rows)
        return f"{compared} runs, equal for every number of threads"
    return work


def scaling(runner):
    """Tokens per second of a prefill by threads; wants an idle machine."""
    def work(log, deadline):
        ids, parts = token_file(runner, 400 if runner.small else 4000), []
        for profile in ("fma", "sm90"):
            rates = []
            for threads in (1, 2, 4, 8, 16):
                command = [RELEASE / "lockstep", "generate", "--model", "golden/models/tiny-v41-mul1", "--ids", ids, "--max-tokens", "1",
                           "--profile", profile, "--json", "--device", f"cpu:1,threads={threads}"]
                runner.run(command, log, deadline)
                rates.append(json.loads(last_line(log))["timings"]["prefill_tokens_per_second"])
            parts.append(f"{profile} {rates[0]:.0f} tok/s, times " + " ".join(f"{rate / rates[0]:.2f}" for rate in rates))
        return "; ".join(parts)
    return work


def ctest(runner, directory, deadline, log, small_filter):
    filters = ["-R", small_filter] if runner.small else []
    runner.run(["ctest", "--test-dir", directory, "-j", os.cpu_count(), "--output-on-failure", "--timeout", "200", "-E", TOO_LONG,
                *filters], log, deadline)


def counted(log):
    found = re.findall(r"(\d+)% tests passed, (\d+) tests failed out of (\d+)", log.read_text(errors="replace"))
    return f"{sum(int(total) - int(failed) for _, failed, total in found)} of {sum(int(total) for _, _, total in found)} tests passed"


def asan_tests(runner):
    def work(log, deadline):
        ctest(runner, "build/cpu-asan-ubsan", deadline, log, "SameBits")
        return counted(log)
    return work


def tsan_tests(runner):
    def work(log, deadline):
        def folder(name):
            ctest(runner, f"build/cpu-tsan/{name}", deadline, log, "CpuStream|KvState|MatrixTest|NoFault")

        def schedules():
            if not runner.small:
                runner.run(["build/cpu-tsan/bin/schedule_fuzz_replay", "harness/fuzz/corpus/schedule"], log, deadline)
        together([lambda name=name: folder(name) for name in TSAN_FOLDERS] + [schedules])
        return counted(log) + ", schedules replayed"
    return work


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/long-checks")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="+", default=["release", "asan", "tsan"], choices=["release", "asan", "tsan"])
    flags = parser.parse_args()
    flags.out = flags.out.resolve()
    flags.out.mkdir(parents=True, exist_ok=True)
    (flags.out / "summary.txt").unlink(missing_ok=True)
    runner = Runner(flags.out, flags.small)

    def release():
        def others():
            for name, work in (("matrix", matrix), ("thread-bits", thread_bits), ("splits", splits)):
                runner.step(name, work(runner))
        together([others, lambda: runner.step("exact-tail", exact_tail(runner))])

    def asan():
        targets = ["check_test"] if runner.small else ["all"]
        if runner.step("asan-build", build(runner, "build/cpu-asan-ubsan", cmake_flags("cpu-asan-ubsan"), targets)):
            runner.step("asan-tests", asan_tests(runner))

    def tsan():
        targets = ["cpu_stream_test"] if runner.small else TSAN_TARGETS
        if runner.step("tsan-build", build(runner, "build/cpu-tsan", cmake_flags("cpu-tsan"), targets)):
            runner.step("tsan-tests", tsan_tests(runner))

    chains = {"release": release, "asan": asan, "tsan": tsan}
    if "release" in flags.only:
        built = runner.step("release-build", build(runner, RELEASE, ["-DCMAKE_BUILD_TYPE=Release"], RELEASE_TARGETS))
        if not built:
            return 1
        runner.step("scaling", scaling(runner))
    together([chains[name] for name in flags.only])
    print("failed: " + ", ".join(runner.failed) if runner.failed else "all steps passed")
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())
