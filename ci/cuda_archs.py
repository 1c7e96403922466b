"""Compiles the CUDA kernels for each architecture and tabulates what the compiler made of them.

For each kernel and architecture: registers, bytes spilled, and for EXL3 kernels the issued instructions of their innermost loops for each
weight that a loop decodes (a weight is one multiplication by its codebook's constant). Exits with 1 if a file does not compile, or if a
kernel of those in GUARDED spills on an architecture that it was tuned for; elsewhere spills are only tabulated.

Usage: ci/cuda_archs.sh [--archs 70,75,80,86,89,90a,100,120] [--files REGEX] [--jobs N] [--quiet]
sm_70 needs --cuda12 DIR, made by ci/cuda12.sh; so do instruction counts, for which later toolkits' disassembler is not always there.
"""

import argparse
import collections
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ARCHS = ["70", "75", "80", "86", "89", "90a", "100", "120"]
TUNED = {"90a"}
# Kernels of every decode step that were made to fit their registers.
GUARDED = r"Exl3Small|Exl3Prepare|DenseKernel|PairGroups"
DISASSEMBLED = {"70", "75", "80", "86", "89", "90a"}  # by CUDA 12.4
FLAGS = ["-std=c++20", "--fmad=false", "-Xptxas=-v", "-diag-suppress=20012", "-cubin"]
# What a state is multiplied by, as an immediate operand shows it.
CODEBOOKS = {"mul1": "-0x7c232ed3", "mcg": "-0x3453e013", "3inst": "0x5517c72"}

Kernel = collections.namedtuple("Kernel", "name registers spilled loops")
Result = collections.namedtuple("Result", "source arch error kernels")


def parse_usage(log):
    """{mangled name: (registers, bytes spilled)} from what ptxas -v prints."""
    usage = {}
    name, spilled = None, 0
    for line in log.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            name, spilled = entry.group(1), 0
        elif spill := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = max(spilled, int(spill.group(1)), int(spill.group(2)))
        elif (used := re.search(r"Used (\d+) registers", line)) and name:
            usage[name] = (int(used.group(1)), spilled)
            name = None
    return usage


def innermost_loops(body):
    """[first, last] lines of the loops of one function's disassembly that have no loop inside."""
    labels, loops = {}, []
    for i, line in enumerate(body):
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label.group(1)] = i
        elif branch := re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line):
            if branch.group(1) in labels:
                loops.append((labels[branch.group(1)], i))
    return [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]


def decode_loops(body):
    """{codebook: [instructions a weight of each innermost loop that decodes]}."""
    found = collections.defaultdict(list)
    for first, last in innermost_loops(body):
        code = [line for line in body[first:last + 1] if re.search(r"/\*[0-9a-f]{4,}\*/", line) and "NOP" not in line]
        for codebook, constant in CODEBOOKS.items():
            weights = sum(1 for line in code if f" {constant}," in line)
            if weights >= 4:
                found[codebook].append(len(code) / weights)
    return dict(found)


def functions(sass):
    """{mangled name: lines} of a disassembly."""
    bodies, name = collections.defaultdict(list), None
    for line in sass.splitlines():
        if section := re.match(r"\.text\.(\w+):", line):
            name = section.group(1)
        elif line.startswith("//---"):
            name = None
        if name:
            bodies[name].append(line.strip())
    return bodies


def compile_one(source, arch, cuda12, scratch):
    cubin = pathlib.Path(scratch) / f"{source.stem}.{arch}.cubin"
    nvcc = str(cuda12 / "bin/nvcc") if arch == "70" else "nvcc"
    command = [nvcc, *FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}", f"-I{ROOT}", "-o", str(cubin), str(source)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        return Result(source, arch, run.stderr.strip(), [])
    loops = {}
    if cuda12 and arch in DISASSEMBLED:
        sass = subprocess.run([str(cuda12 / "bin/nvdisasm"), "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
        loops = {name: decode_loops(body) for name, body in functions(sass).items()}
    kernels = [Kernel(name, *used, loops.get(name, {})) for name, used in parse_usage(run.stderr).items()]
    return Result(source, arch, None, kernels)


def demangle(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    noise = r"lockstep::(\w+::)*|\(anonymous namespace\)::|\((bool|int|unsigned|long)\)|^void "
    short = [re.sub(noise, "", line) for line in text.splitlines()]
    return dict(zip(names, (re.sub(r"(?<=[\w>])\(.*$", "", line) for line in short)))


def loop_text(loops):
    return " ".join(f"{codebook} {'/'.join(f'{value:.1f}' for value in sorted(values))}" for codebook, values in sorted(loops.items()))


def print_table(results):
    names = demangle(sorted({kernel.name for result in results for kernel in result.kernels}))
    print(f"{'kernel':64} {'arch':>6} {'regs':>5} {'spilled':>8}  instructions a weight, by innermost loop")
    for result in results:
        for kernel in sorted(result.kernels, key=lambda k: names[k.name]):
            where = f"{result.source.stem}: {names[kernel.name]}"
            print(f"{where:64} {result.arch:>6} {kernel.registers:5} {kernel.spilled:8}  {loop_text(kernel.loops)}".rstrip())


def problems_of(results):
    problems = []
    for result in results:
        where = f"{result.source.relative_to(ROOT)} for sm_{result.arch}"
        if result.error:
            lines = result.error.splitlines()
            problems.append(f"{where} does not compile: {next((line for line in lines if 'error' in line), lines[0])}")
        if result.arch not in TUNED:
            continue
        for kernel in result.kernels:
            if kernel.spilled and re.search(GUARDED, kernel.name):
                problems.append(f"{where}: {demangle([kernel.name])[kernel.name]} spills {kernel.spilled} bytes")
    return problems


def sources(pattern):
    """The device code of the engine: every .cu under kernels/."""
    return [path for path in sorted((ROOT / "kernels").rglob("*.cu")) if re.search(pattern, str(path.relative_to(ROOT)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archs", default=",".join(ARCHS))
    parser.add_argument("--files", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cuda12", type=pathlib.Path)
    parser.add_argument("--quiet", action="store_true", help="print problems only")
    args = parser.parse_args()
    archs = args.archs.split(",")
    if unknown := set(archs) - set(ARCHS):
        parser.error(f"--archs: unknown {', '.join(sorted(unknown))}, expected some of {', '.join(ARCHS)}")
    if "70" in archs and not args.cuda12:
        parser.error("--archs 70: needs --cuda12 DIR")
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        work = [pool.submit(compile_one, source, arch, args.cuda12, scratch) for source in sources(args.files) for arch in archs]
        results = [future.result() for future in work]
    if not args.quiet:
        print_table(results)
    problems = problems_of(results)
    spilling = sum(1 for result in results for kernel in result.kernels if kernel.spilled)
    print("\n".join(problems) if problems else f"{len(results)} compilations; {spilling} kernels spill, none that must not")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
