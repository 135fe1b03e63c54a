"""Submits a run with the client of openapi-python-client, and reads it back: `submit.py URL`."""

import sys
from typing import cast

from llmprof_client import AuthenticatedClient, Client
from llmprof_client.api.runs import get_run, submit_run
from llmprof_client.models import ModelSubject, RunView, SubmitModel, SubmittedRun

url = sys.argv[1]
token = sys.argv[2] if len(sys.argv) > 2 else None
# The token is optional, which the types of the generated functions do not express.
client = (
    AuthenticatedClient(base_url=url, token=token)
    if token
    else cast(AuthenticatedClient, Client(base_url=url))
)

submitted = submit_run.sync(
    client=client, body=SubmitModel(model="llama-tiny", repeats=1, warmup=0, max_new_tokens=2)
)
assert isinstance(submitted, SubmittedRun), submitted
run = get_run.sync(submitted.run_id, client=client)
assert isinstance(run, RunView), run
subject = run.spec.subject
assert isinstance(subject, ModelSubject) and subject.workload.model == "llama-tiny", run
print(f"python client: run {run.run_id} of {run.name} is {run.state}")
