"""Media types of POST /captures that schemathesis does not know: files, sent as they are."""
import schemathesis


@schemathesis.serializer("application/vnd.sqlite3", "application/zstd")
def as_it_is(_context, value):
    return value if isinstance(value, bytes) else str(value).encode()
