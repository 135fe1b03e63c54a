-- An alignment of two runs and what came of it. Runs may go before it: what it found stays. Times are milliseconds since 1970, UTC.
create table alignments (
    id         blob primary key,           -- uuid version 7: sorts by submission
    owner      text,                       -- as of runs
    mock       blob not null,
    e2e        blob not null,
    spec       text not null,              -- JSON, as asked
    state      text not null check (state in ('queued', 'running', 'succeeded', 'failed')),
    attempts   integer not null default 0,
    queued_at  integer not null,
    started_at integer,                    -- of the last attempt
    ended_at   integer,
    verdict    text,
    checks     text not null default '[]', -- JSON, without evidence
    message    text                        -- why it failed, in one line
) strict, without rowid;

create index alignments_by_state on alignments (state, id);
create index alignments_by_owner on alignments (owner, state) where owner is not null;

create table alignment_artifacts (
    alignment_id blob not null references alignments (id) on delete cascade,
    path         text not null,
    bytes        integer not null,
    sha256       text not null,
    media_type   text not null,
    step         text,
    primary key (alignment_id, path)
) strict, without rowid;
