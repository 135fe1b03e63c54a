-- Sweeps: grids of submissions, of which each point is a run. Times are milliseconds since 1970, UTC.
create table sweeps (
    id          blob primary key,                -- uuid version 7: sorts by submission
    owner       text,
    name        text,
    state       text not null check (state in ('running', 'paused', 'done', 'cancelled')),
    request     text not null,                   -- JSON: as submitted, with defaults
    max_queued  integer not null,                -- points that are queued at a time
    reuse       integer not null,                -- 1: points that were measured before are not measured again
    max_minutes integer not null,
    created_at  integer not null,
    deadline_at integer not null,                -- points that have not started by then are gaps
    paused_at   integer,
    ended_at    integer,
    message     text                             -- why it was paused by the service
) strict, without rowid;
create index sweeps_running on sweeps (id) where state = 'running';
create index sweeps_active on sweeps (owner, id) where state in ('running', 'paused');

create table sweep_points (
    sweep    blob not null references sweeps (id) on delete cascade,
    position integer not null,
    axes     text not null,                      -- JSON: the value of each axis
    spec     text,                               -- JSON; null: refused, and a gap
    run_id   blob,                               -- null: not queued; its run may be deleted before it
    reused   integer not null default 0,         -- 1: the run was not made by this sweep
    gap      text,                               -- why it has no figures
    figures  text,                               -- JSON: of its ended run
    primary key (sweep, position)
) strict, without rowid;
create index sweep_points_open on sweep_points (sweep, position) where run_id is not null and gap is null and figures is null;
create index sweep_points_by_run on sweep_points (run_id) where run_id is not null;

-- The sweep that made a run, and a hash of what it measures: of its subject and its revision.
alter table runs add column sweep blob;
alter table runs add column fingerprint text;
create index runs_of_sweep on runs (sweep, id) where sweep is not null;
create index runs_by_fingerprint on runs (fingerprint, id) where fingerprint is not null and state = 'succeeded';
