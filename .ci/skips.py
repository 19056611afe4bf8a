"""skips.py REPORT.xml ALLOWED.txt: print each skipped test; exit 1 on one that is not allowed."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def main(report: str, allowed: str) -> int:
    lines = Path(allowed).read_text(encoding="utf-8").splitlines()
    names = {line.split("#")[0].strip() for line in lines} - {""}
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    skipped = {
        f"{case.get('classname')}::{case.get('name')}": skip.get("message", "")
        for case in cases
        for skip in case.iter("skipped")
    }
    for name, reason in skipped.items():
        sys.stdout.write(f"skipped: {name}: {reason}\n")
    unknown = [name for name in skipped if name.split("[")[0] not in names]
    for name in unknown:
        sys.stdout.write(f"not in {allowed}: {name}\n")
    sys.stdout.write(f"{len(cases)} tests, {len(skipped)} skipped, {len(unknown)} not allowed\n")
    return 1 if unknown or not cases else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
