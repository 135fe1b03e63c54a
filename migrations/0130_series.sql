-- Series of comparable runs. Times are milliseconds since 1970, UTC.
create table series (
    id       text primary key,                   -- hash of its identity
    identity text not null,                      -- JSON: the facts that its runs share
    name     text not null,                      -- of the model, the command or the capture
    device   text,                               -- product name
    stale    integer not null default 1          -- its points changed after its change points were computed
) strict, without rowid;
create index series_stale on series (id) where stale = 1;

-- The headline figures of an ended run; absent where they were not measured.
create table points (
    run_id       blob primary key references runs (id) on delete cascade,
    series       text references series (id),    -- null: the run has no report that can be read
    revision     text,                           -- as submitted
    build        text not null,                  -- version and commit of llmprof
    driver       text,
    host         text,
    device       text,                           -- product name
    ttft         real,                           -- ms
    tpot         real,                           -- ms
    wall         real,                           -- ms
    tokens_per_s real,
    gpu_busy     real,                           -- percent
    mfu          real,                           -- percent
    energy       real                            -- joules per token
) strict, without rowid;
create index points_by_series on points (series, run_id) where series is not null;

create trigger point_added after insert on points when new.series is not null begin
    update series set stale = 1 where id = new.series;
end;
-- A series ends with its last run.
create trigger point_deleted after delete on points when old.series is not null begin
    update series set stale = 1 where id = old.series;
    delete from series where id = old.series and not exists (select 1 from points where series = old.series);
end;

-- Change points of the figures of a series: each starts at a run.
create table change_points (
    series     text not null references series (id) on delete cascade,
    figure     text not null,
    run_id     blob not null references runs (id) on delete cascade,
    before     real not null,                    -- mean since the previous change point
    after      real not null,                    -- mean until the next
    p          real not null,
    primary key (series, figure, run_id)
) strict, without rowid;
create index change_points_by_run on change_points (run_id);

-- Baselines: each row sets a name; the last one counts, the others are its history. Runs may go before it.
create table baselines (
    id     integer primary key,
    name   text not null,
    run_id blob,                                 -- null: by rule, or the name was removed
    label  text,                                 -- rule: the newest succeeded run with this label
    set_at integer not null,
    set_by text
) strict;
create index baselines_by_name on baselines (name, id);

-- Regressions that a gate found and a caller accepted.
create table accepted_regressions (
    id       integer primary key,
    baseline text not null,
    run_id   blob not null references runs (id) on delete cascade,
    reason   text not null,
    at       integer not null,
    by       text
) strict;
create index accepted_by_run on accepted_regressions (run_id);
