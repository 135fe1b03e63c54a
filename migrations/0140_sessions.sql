-- Sessions: servers that stay under nsys launch, on which runs record windows. Times are milliseconds since 1970, UTC.
create table sessions (
    id            blob primary key,              -- uuid version 7: sorts by submission
    owner         text,
    state         text not null check (state in ('starting', 'ready', 'busy', 'ending', 'ended', 'failed', 'lost')),
    spec          text not null,                 -- JSON: command, device, lifetime, settings of nsys launch
    device        text not null,                 -- as requested: auto, cpu, cuda:0
    gpus          integer not null,
    rank          integer not null,              -- as of a run of priority 0
    created_at    integer not null,
    started_at    integer,                       -- of the server
    ready_at      integer,
    ended_at      integer,
    expires_at    integer not null,              -- until the server starts: of the wait for a device
    devices       text,                          -- JSON: names of the devices that it holds
    worker        text,
    lease_until   integer,
    end_requested integer not null default 0,
    message       text,                          -- why it ended
    log           text                           -- last lines of the server's output
) strict, without rowid;
create index sessions_waiting on sessions (rank, id) where state = 'starting' and worker is null;
create index sessions_active on sessions (owner, id) where state in ('starting', 'ready', 'busy', 'ending');

-- The session on which a run records; its worker alone claims the run.
alter table runs add column session blob;
create index runs_of_session on runs (session, id) where session is not null;
