"""Checks that includes go one way, as CONTRIBUTING.md says. Prints each offender; exits with 1 if there is one."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
SOURCES = {".cc", ".h", ".cu", ".cuh"}
GENERATED = {"lockstep_version.h"}
FOLDERS = ("model", "kernels", "reference", "fast", "server", "cli", "harness")

# Folder -> prefixes it may include; the longest folder that fits a file decides.
ALLOWED = {
    "model": ("model/",),
    "kernels/contract": ("model/", "kernels/contract/"),
    "kernels": ("model/", "kernels/"),
    "kernels/table": ("model/", "kernels/"),
    "kernels/device": ("model/", "kernels/"),
    "fast": ("model/", "kernels/", "fast/"),
    "reference": ("model/", "kernels/contract/exact_math.h", "reference/"),
    "server": ("model/", "server/"),
    "cli": tuple(f"{folder}/" for folder in FOLDERS),
    "harness": tuple(f"{folder}/" for folder in FOLDERS if folder != "cli"),
}

# An operation's kernels may share one another's layouts and use a device's streams, but not know the table or whole devices.
FORBIDDEN_TO_OPERATIONS = re.compile(r"^kernels/(table/|device/(backend|device_spec)\.h$)")
ABOVE_OPERATIONS = ("kernels/contract/", "kernels/table/", "kernels/device/")

# System headers that the layers below devices and engines must not need.
FORBIDDEN_SYSTEM = {
    "model": re.compile(r"^(thread|Eigen/.*|unsupported/.*|cuda.*)$"),
    "reference": re.compile(r"^cuda"),
    "fast": re.compile(r"^(Eigen/.*|cuda.*)$"),
    "server": re.compile(r"^(Eigen/.*|cuda.*)$"),
}


def is_test(path):
    """Tests and benches may look at everything."""
    return bool(re.search(r"(_test|_bench|_fuzz|_cases|/test_\w+)\.(cc|h|cu|cuh)$|/testing/", path))


def may_include(path, local):
    folder = max((f for f in ALLOWED if path.startswith(f + "/")), key=len)
    is_operation = path.startswith("kernels/") and not path.startswith(ABOVE_OPERATIONS)
    if is_operation and FORBIDDEN_TO_OPERATIONS.match(local):
        return False
    return any(local.startswith(prefix) for prefix in ALLOWED[folder])


def check_file(path, text):
    """Yields what is wrong with the includes of one file, `path` relative to the root."""
    forbidden = FORBIDDEN_SYSTEM.get(path.split("/")[0])
    for local, system in INCLUDE.findall(text):
        if system:
            if forbidden and forbidden.match(system) and not is_test(path):
                yield f"{path}: includes <{system}>"
        elif local in GENERATED:
            continue
        elif not (ROOT / local).is_file():
            yield f'{path}: "{local}" is no path from the repository root'
        elif not is_test(path) and not may_include(path, local):
            yield f'{path}: may not include "{local}"'


def self_test():
    """A rule that catches nothing is worse than none."""
    bad = {
        "model/a.cc": '#include "reference/engine.h"',
        "server/a.cc": '#include "reference/engine.h"',
        "reference/a.cc": '#include "kernels/contract/cpu_isa.h"',
        "fast/a.h": '#include "reference/engine.h"',
        "model/b.cc": "#include <Eigen/Core>",
        "harness/a.cc": '#include "cli/version.h"',
        "kernels/linear/a.cc": '#include "kernels/device/backend.h"',
    }
    good = {
        "reference/a.cc": '#include "kernels/contract/exact_math.h"',
        "reference/a_test.cc": '#include "kernels/contract/cpu_isa.h"',
        "cli/a.cc": '#include "reference/engine.h"',
    }
    for path, text in bad.items():
        assert list(check_file(path, text)), f"not caught: {path}"
    for path, text in good.items():
        assert not list(check_file(path, text)), f"caught: {path}"


def main():
    self_test()
    offenders = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SOURCES:
                offenders += check_file(path.relative_to(ROOT).as_posix(), path.read_text())
    print("\n".join(offenders) if offenders else "includes go one way")
    return 1 if offenders else 0


if __name__ == "__main__":
    sys.exit(main())
