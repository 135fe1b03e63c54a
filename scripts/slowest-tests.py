#!/usr/bin/env python3
"""Prints the slowest tests of a record of nextest: usage: slowest-tests.py JUNIT_XML [COUNT]"""
import sys
import xml.etree.ElementTree as tree

cases = tree.parse(sys.argv[1]).iter("testcase")
count = int(sys.argv[2]) if len(sys.argv) > 2 else 40
rows = sorted(((float(case.get("time")), case.get("name")) for case in cases), reverse=True)
for seconds, name in rows[:count]:
    print(f"{seconds:8.1f} s  {name}")
total = sum(seconds for seconds, _ in rows)
print(f"{total:8.1f} s  {len(rows)} tests, one after another")
