#!/usr/bin/env python3
"""Checks words and widths of the repository's sources against scripts/words.txt.

    scripts/check-words.py            all tracked files
    scripts/check-words.py PATH...    files and folders
    scripts/check-words.py --shares   prints the share of comment lines of each `share` rule

Comments, documentation and string literals with a space are texts. Captures, golden files, migrations
(their checksums are stored in databases) and the word list are not checked.
Exits with 1 and one line per offender.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "scripts/words.txt"
WIDTH = 100
# Files whose lines end at WIDTH columns; the lines of the others may be longer.
NARROW = {".rs", ".py", ".sh", ".sql", ".cu", ".cuh", ".js", ".ts", ".css", ".toml", ".yml"}
PROSE = {".md", ".html", ".txt"}
COMMENT = {
    ".rs": "//", ".cu": "//", ".cuh": "//", ".js": "//", ".ts": "//", ".sql": "--", ".py": "#", ".sh": "#",
    ".toml": "#", ".yml": "#", ".service": "#", "": "#",
}
SKIPPED = ("migrations/", "tests/golden/", "tests/fixtures/", "tests/gpu/", "scripts/words.txt",
           "scripts/check-words.py", "contracts/", "Cargo.lock", "LICENSE-", "deny.toml", "samples/")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')


def rules():
    kinds = {"ban": [], "name": [], "header": [], "share": []}
    for line in RULES.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            kind, pattern, instead = re.split(r"\s{2,}", line.strip(), maxsplit=2)
            kinds[kind].append((re.compile(pattern, re.I), instead))
    return kinds


def files(arguments):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", *arguments], cwd=ROOT,
                            text=True, capture_output=True, check=True)
    for name in listed.stdout.splitlines():
        path = ROOT / name
        known = path.suffix in COMMENT or path.suffix in PROSE
        if known and path.is_file() and not name.startswith(SKIPPED):
            yield name, path


def texts(line, suffix):
    """The comment of a line, and its texts: comment, prose, or literals with a space."""
    if suffix in PROSE:
        return None, [line]
    mark = COMMENT[suffix]
    stripped = line.strip()
    if stripped.startswith(mark):
        comment = stripped.lstrip(mark).lstrip("!").strip()
        return comment, [comment]
    return None, [literal for literal in LITERAL.findall(line) if " " in literal]


def main():
    arguments = sys.argv[1:]
    shares_only = arguments == ["--shares"]
    kinds = rules()
    offenders, comments, hits = [], 0, {pattern.pattern: 0 for pattern, _ in kinds["share"]}
    for name, path in files([] if shares_only else arguments):
        previous = ""
        for number, line in enumerate(path.read_text().splitlines(), 1):
            place = f"{name}:{number}"
            unbroken = "http" in line or "@sha256:" in line
            if path.suffix in NARROW and len(line) > WIDTH and not unbroken:
                offenders.append(f"{place}: {len(line)} columns, at most {WIDTH}")
            comment, found = texts(line, path.suffix)
            for pattern, instead in kinds["ban"]:
                for text in found:
                    if match := pattern.search(text):
                        offenders.append(f'{place}: "{match.group().strip()}"; write: {instead}')
            if path.suffix == ".rs":
                if comment is not None:
                    comments += 1
                    for pattern, _ in kinds["share"]:
                        hits[pattern.pattern] += bool(pattern.search(comment))
                    first = line.strip().startswith(("//!", "///")) and not previous.startswith(("//!", "///"))
                    for pattern, instead in kinds["header"]:
                        if first and pattern.match(comment):
                            offenders.append(f'{place}: header starts with "{comment.split()[0]}"; {instead}')
                else:
                    code = LITERAL.sub('""', line)
                    for pattern, instead in kinds["name"]:
                        if match := pattern.search(code):
                            offenders.append(f'{place}: name "{match.group()}"; write: {instead}')
            previous = line.strip()
    for pattern, limit in kinds["share"]:
        share = 100 * hits[pattern.pattern] / max(comments, 1)
        if shares_only:
            print(f"{share:.2f} % of {comments} comment lines match {pattern.pattern} (at most {limit} %)")
        elif not arguments and share > float(limit):
            offenders.append(f"{share:.2f} % of comment lines match {pattern.pattern}, at most {limit} %")
    if not shares_only:
        print("\n".join(offenders), end="\n" if offenders else "")
        print(f"{len(offenders)} offenders", file=sys.stderr)
    return bool(offenders) and not shares_only


if __name__ == "__main__":
    sys.exit(main())
