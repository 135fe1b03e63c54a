"""Packs the results of run.sh as fixtures for the parsers: at most 8 files, without host names.

Texts are scrubbed, paths too; the bundle is not, and is omitted if it is large.
"""

import io
import pathlib
import re
import shutil
import socket
import sqlite3
import sys
import tarfile

data, out = map(pathlib.Path, sys.argv[1:])
runs = dict(line.split() for line in (data / "submitted").read_text().splitlines())
LARGEST_BUNDLE = 24 << 20
KEPT = [
    "report.json",
    "env.json",
    "spec.json",
    "config.yaml",
    "inputs.yaml",
    "progress.jsonl",
    "baseline/nvml.jsonl",
    "nsys/coverage.json",
    "nsys/events.jsonl",
]
PATTERNS = [
    "ncu/*/raw.csv",
    "ncu/*/details.csv",
    "ncu/choice.json",
    "gemm_log/*/*.log",
    "*/cmd.txt",
    "ncu/*/cmd.txt",
]


def scrub(raw):
    text = raw.decode("utf-8", "replace").replace(str(data), "/data")
    # Host names may be short: "vm" must not match inside "nvml".
    text = re.sub(rf"(?<![\w-]){re.escape(socket.gethostname())}(?![\w-])", "host-1", text)
    return re.sub(r"\b(GPU|MIG)-[0-9a-f]{8}-", r"\1-00000000-", text).encode()


def scrub_export(path):
    """An export of nsys with scrubbed texts and without tables of machine and environment."""
    scrubbed = data / "scrubbed.sqlite"
    shutil.copyfile(path, scrubbed)
    with sqlite3.connect(scrubbed, isolation_level=None) as export:
        tables = [
            name
            for (name,) in export.execute("select name from sqlite_master where type = 'table'")
        ]
        for table in tables:
            if table.startswith(
                ("META_DATA_CAPTURE", "TARGET_INFO_SYSTEM", "PROCESSES", "DIAGNOSTIC", "ANALYSIS_")
            ):
                export.execute(f'delete from "{table}"')
        rows = export.execute("select id, value from StringIds").fetchall()
        for key, value in rows:
            text = value if isinstance(value, str) else str(value)
            # Arguments and environment of a process are strings of many parts.
            clean = (
                "scrubbed"
                if "\0" in text or text.startswith(("/proc", "/root", "/home"))
                else scrub(text.encode()).decode()
            )
            if clean != text:
                export.execute("update StringIds set value = ? where id = ?", (clean, key))
        if "META_DATA_EXPORT" in tables:
            export.execute("update META_DATA_EXPORT set value = 'scrubbed' where value like '%/%'")
        export.execute("vacuum")
    return scrubbed.read_bytes()


with tarfile.open(out / "fixtures.tar.xz", "w:xz") as archive:
    for name, run_id in runs.items():
        folder = data / "runs" / run_id
        for path in sorted(
            {folder / kept for kept in KEPT}
            | {path for pattern in PATTERNS for path in folder.glob(pattern)}
        ):
            if path.is_file():
                content = scrub(path.read_bytes())
                member = tarfile.TarInfo(f"{name}/{path.relative_to(folder)}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        if name == "small" and (folder / "nsys/run.sqlite").is_file():
            content = scrub_export(folder / "nsys/run.sqlite")
            for path in sorted(folder.glob("**/events.jsonl")) + sorted(
                folder.glob("**/request.json")
            ):
                if path != folder / "nsys/events.jsonl":
                    text = scrub(path.read_bytes())
                    member = tarfile.TarInfo(f"{name}/{path.relative_to(folder)}")
                    member.size = len(text)
                    archive.addfile(member, io.BytesIO(text))
            member = tarfile.TarInfo(f"{name}/nsys/run.sqlite")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
for name, run_id in runs.items():
    report = data / "runs" / run_id / "report.json"
    if report.is_file():
        (out / f"{name}.report.json").write_bytes(scrub(report.read_bytes()))
(out / "table.txt").write_bytes((data / "table.txt").read_bytes())
(out / "service.log").write_bytes(scrub((data / "service.log").read_bytes()))
bundle = data / "deep.tar.zst"
if bundle.stat().st_size <= LARGEST_BUNDLE:
    shutil.copyfile(bundle, out / "deep.tar.zst")
for path in sorted(out.iterdir()):
    print(f"{path.stat().st_size:>12}  {path}")
