"""The types of the answers against the contract, whose path is LLMPROF_CONTRACT."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from llmprof import _answers

CONTRACT = Path(os.environ.get("LLMPROF_CONTRACT", "contracts/profile.yaml"))
TYPES = [
    name
    for name, value in vars(_answers).items()
    if isinstance(value, type) and value.__module__ == _answers.__name__
]


@pytest.mark.skipif(not CONTRACT.is_file(), reason="no contract at LLMPROF_CONTRACT")
def test_every_field_of_an_answer_is_in_the_contract() -> None:
    schemas = yaml.safe_load(CONTRACT.read_text())["components"]["schemas"]
    assert len(TYPES) > 8
    for name in TYPES:
        fields = set(getattr(_answers, name).__annotations__)
        assert fields <= set(schemas[name]["properties"]), name
