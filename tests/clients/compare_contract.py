"""Compares a contract as YAML, read by PyYAML, with the same contract as JSON.

usage: compare_contract.py CONTRACT.yaml CONTRACT.json
Prints each difference with its path, and exits with 1 if there is one. Types count: 1 is not True
and not 1.0.
"""

import json
import sys

import yaml


def differences(path, found, expected):
    """Yields the differences of two values."""
    if type(found) is not type(expected):
        yield f"{path}: {found!r} is not {expected!r}"
    elif isinstance(found, dict):
        if found.keys() != expected.keys():
            odd = [key for key in found if key not in expected]
            lost = [key for key in expected if key not in found]
            yield f"{path}: keys {odd!r} in place of {lost!r}"
        for key in found.keys() & expected.keys():
            yield from differences(f"{path}/{key}", found[key], expected[key])
    elif isinstance(found, list):
        if len(found) != len(expected):
            yield f"{path}: {len(found)} items in place of {len(expected)}"
        for at, pair in enumerate(zip(found, expected)):
            yield from differences(f"{path}/{at}", *pair)
    elif found != expected:
        yield f"{path}: {found!r} is not {expected!r}"


with open(sys.argv[1], encoding="utf-8") as text:
    FOUND = yaml.safe_load(text)
with open(sys.argv[2], encoding="utf-8") as text:
    EXPECTED = json.load(text)
ALL = list(differences("", FOUND, EXPECTED))
print(*ALL, sep="\n", end="\n" if ALL else "")
sys.exit(1 if ALL else 0)
