"""What schemathesis does not know of the service: files, sent as they are, and what a role may not do."""
import os

import schemathesis

ROLE = os.environ.get("LLMPROF_ROLE", "")


@schemathesis.serializer("application/vnd.sqlite3", "application/zstd")
def as_it_is(_context, value):
    return value if isinstance(value, bytes) else str(value).encode()


@schemathesis.check
def a_role_is_held_to_what_it_may(_context, response, case):
    """Where the contract asks for a token, nobody is let in without one, and a viewer changes nothing."""
    refused = {"nobody": 401, "viewer": 403}.get(ROLE)
    operation = case.operation
    guarded = bool(operation.definition.raw.get("security"))
    # Other methods and broken paths lead to other places, which have answers of their own.
    asked = case.method.lower() == operation.method.lower()
    if refused is None or not guarded or not asked:
        return
    assert response.status_code == refused, f"as {ROLE}: {response.status_code} where {refused} was due"
    assert ("www-authenticate" in response.headers) == (refused == 401), "only a 401 tells how to be let in"
