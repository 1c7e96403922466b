"""Checks that ci/cuda_architectures.sh turns the GPUs of a machine into architectures, and refuses those that cannot be built for."""
import os
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).parent / "cuda_architectures.sh"


def run(capabilities, nvcc_major, named=""):
    """The script's exit status and output where nvidia-smi and nvcc say this."""
    with tempfile.TemporaryDirectory() as bin_dir:
        programs = {"nvcc": f"echo 'Cuda compilation tools, release {nvcc_major}.0, V{nvcc_major}.0.48'",
                    "nvidia-smi": "printf '%s\\n' " + " ".join(capabilities) if capabilities else "exit 9"}
        for name, body in programs.items():
            path = pathlib.Path(bin_dir) / name
            path.write_text(f"#!/bin/sh\n{body}\n")
            path.chmod(0o755)
        environment = {"PATH": bin_dir + os.pathsep + os.environ["PATH"], "LOCKSTEP_CUDA_ARCHITECTURES": named}
        result = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True)
        return result.returncode, result.stdout.strip() or result.stderr


def main():
    expected = {
        ((), 13, ""): "90a",
        (("9.0",), 13, ""): "90a",
        (("7.0", "7.0", "7.0", "7.0"), 12, ""): "70",
        (("12.0", "8.6", "7.5", "8.6"), 13, ""): "75;86;120",
        (("6.1",), 13, "80;90a"): "80;90a",
    }
    wrong = []
    for arguments, output in expected.items():
        found = run(*arguments)
        if found != (0, output):
            wrong.append(f"{arguments}: expected {output}, found {found}")
    for arguments, word in ({(("7.0", "8.0"), 13, ""): "CUDA 12", (("6.1", "8.6"), 12, ""): "6.1"}).items():
        status, message = run(*arguments)
        if status != 1 or word not in message:
            wrong.append(f"{arguments}: expected a refusal that says {word}, found {status}: {message}")
    print("\n".join(wrong) or "cuda_architectures chooses")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
