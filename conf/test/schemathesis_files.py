"""Extensions of schemathesis: bodies that are files, and the statuses of each role."""
import os

import schemathesis

ROLE = os.environ.get("LLMPROF_ROLE", "")


@schemathesis.serializer(
    "application/gzip", "application/vnd.sqlite3", "application/x-tar", "application/zstd"
)
def raw_bytes(_context, value):
    return value if isinstance(value, bytes) else str(value).encode()


@schemathesis.check
def guarded_operations_refuse_the_role(_context, response, case):
    """Guarded operations refuse requests without a token, and writes by a viewer."""
    refused = {"anonymous": 401, "viewer": 403}.get(ROLE)
    operation = case.operation
    guarded = bool(operation.definition.raw.get("security"))
    # Other methods and malformed paths reach other operations.
    same_method = case.method.lower() == operation.method.lower()
    if refused is None or not guarded or not same_method:
        return
    status = response.status_code
    assert status == refused, f"as {ROLE}: {status} instead of {refused}"
    challenge = "www-authenticate" in response.headers
    assert challenge == (refused == 401), "www-authenticate belongs to 401 only"
