"""Counts test results: the JUnit file of ctest and the status files of the ci/check_*.py scripts.

A test that prints "SKIPPED: reason" must be listed in ci/expected_skips.txt ("name: reason" a line, "#" starts a comment), or it counts
as failed; so does a listed name that no test has. Prints "N passed, N failed" last; exits with 1 if anything failed.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree

EXPECTED_SKIPS = pathlib.Path(__file__).parent / "expected_skips.txt"


def read_expected_skips(path):
    lines = (line.split("#", 1)[0].strip() for line in path.read_text().splitlines())
    return dict(line.split(": ", 1) for line in lines if line)


def judge(case, expected_skips):
    """None if the ctest case passed, else why it counts as failed."""
    name, status = case.get("name"), case.get("status")
    skip = re.search(r"^SKIPPED: (.*)$", case.findtext("system-out") or "", re.MULTILINE)
    if status == "run":
        if skip and name not in expected_skips:
            return f"skipped and not listed in ci/expected_skips.txt: {skip.group(1)}"
        return None
    return f"status {status}"


def main(results):
    expected_skips = read_expected_skips(EXPECTED_SKIPS)
    failures, passed, names = [], 0, set()
    report = results / "ctest.xml"
    cases = list(xml.etree.ElementTree.parse(report).iter("testcase")) if report.exists() else []
    if not cases:
        failures.append("ctest: no results")
    for case in cases:
        names.add(case.get("name"))
        reason = judge(case, expected_skips)
        if reason:
            failures.append(f"{case.get('name')}: {reason}")
        else:
            passed += 1
    for name in expected_skips.keys() - names:
        failures.append(f"ci/expected_skips.txt: there is no test {name}")
    for status in sorted(results.glob("*.status")):
        if status.read_text().strip() == "passed":
            passed += 1
        else:
            failures.append(status.stem)
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
