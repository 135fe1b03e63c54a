"""The command line of scripts that compare statements of llmprof with what programs measured, and the
table of their checks."""

import argparse
import pathlib
import sys
import tempfile

rows = []


def arguments():
    """LLMPROF, PYTHON, and the folder `work` of exports and pages."""
    parser = argparse.ArgumentParser()
    parser.add_argument("llmprof")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out")
    args = parser.parse_args()
    args.work = pathlib.Path(args.out or tempfile.mkdtemp())
    args.work.mkdir(parents=True, exist_ok=True)
    return args


def check(recording, claim, expected, found, is_right):
    rows.append((recording, claim, str(expected), str(found), "yes" if is_right else "NO"))


def near(found, expected, part):
    return found is not None and abs(found - expected) <= part * expected


def print_table():
    """Prints a row for each check; returns the exit code."""
    widths = [max(len(row[at]) for row in rows) for at in range(5)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    right = sum(row[-1] == "yes" for row in rows)
    print(f"{right} of {len(rows)} right")
    return 0 if right == len(rows) else 1
