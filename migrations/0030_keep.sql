-- What is kept of old runs, and who is told that a run has ended. Times are milliseconds since 1970, UTC.

-- A pinned run is neither packed nor removed.
alter table runs add column pinned integer not null default 0;
-- When its raw files were packed; null: they lie as they were written.
alter table runs add column packed_at integer;
-- Bytes on disk of a packed file; null: as many as its content.
alter table artifacts add column stored_bytes integer;

-- Whom the service tells when a run ends: hashes of the configured addresses, kept in step with the settings at start.
create table webhooks (
    target text primary key
) strict, without rowid;

-- One message to one address about one run: made in the commit that ends the run, gone when it was delivered.
create table deliveries (
    id        integer primary key,
    run_id    blob not null references runs (id) on delete cascade,
    target    text not null,
    attempts  integer not null default 0,
    next_at   integer not null,
    gave_up   integer not null default 0,        -- tried too often: kept to be looked at
    error     text,                              -- of the last attempt
    unique (run_id, target)
) strict;
create index deliveries_due on deliveries (next_at) where gave_up = 0;

create trigger run_ended after update of state on runs
when new.state not in ('queued', 'running') and old.state in ('queued', 'running') begin
    insert or ignore into deliveries (run_id, target, next_at) select new.id, target, coalesce(new.ended_at, 0) from webhooks;
end;

-- How long steps took, counted in the buckets of a histogram when they end: it outlives the runs.
create table step_durations (
    step    text not null,
    state   text not null,
    bucket  integer not null,                    -- place of its bound in the service's list
    steps   integer not null,
    seconds real not null,
    primary key (step, state, bucket)
) strict, without rowid;
