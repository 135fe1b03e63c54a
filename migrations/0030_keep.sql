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
    bucket  integer not null,                    -- 0: up to 0.1 s, then 1, 5, 15, 60, 300, 900, 1800, 3600; 9: longer
    steps   integer not null,
    seconds real not null,
    primary key (step, state, bucket)
) strict, without rowid;

-- A step is told while it runs and again when it has ended, or only then.
create trigger step_ended after update of ended_at on steps when old.ended_at is null and new.ended_at is not null begin
    insert into step_durations (step, state, bucket, steps, seconds)
    select new.step, new.state,
           case when took <= 0.1 then 0 when took <= 1 then 1 when took <= 5 then 2 when took <= 15 then 3 when took <= 60 then 4
                when took <= 300 then 5 when took <= 900 then 6 when took <= 1800 then 7 when took <= 3600 then 8 else 9 end,
           1, took
    from (select max(0.0, (julianday(new.ended_at) - julianday(new.started_at)) * 86400.0) as took) where took is not null
    on conflict (step, state, bucket) do update set steps = steps + 1, seconds = seconds + excluded.seconds;
end;

create trigger step_told after insert on steps when new.ended_at is not null begin
    insert into step_durations (step, state, bucket, steps, seconds)
    select new.step, new.state,
           case when took <= 0.1 then 0 when took <= 1 then 1 when took <= 5 then 2 when took <= 15 then 3 when took <= 60 then 4
                when took <= 300 then 5 when took <= 900 then 6 when took <= 1800 then 7 when took <= 3600 then 8 else 9 end,
           1, took
    from (select max(0.0, (julianday(new.ended_at) - julianday(new.started_at)) * 86400.0) as took) where took is not null
    on conflict (step, state, bucket) do update set steps = steps + 1, seconds = seconds + excluded.seconds;
end;
