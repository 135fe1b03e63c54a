-- Faults of sealed files, found by a scrub or a repair. A run without rows has none, as far as is known.
create table damage (
    run_id   blob not null references runs (id) on delete cascade,
    path     text not null,
    fault    text not null,                      -- in words
    found_at integer not null,                   -- milliseconds since 1970, UTC
    primary key (run_id, path)
) strict, without rowid;

-- When all files of the run were last compared with their hashes; null: never.
alter table runs add column scrubbed_at integer;
create index runs_scrubbed on runs (coalesce(scrubbed_at, ended_at, queued_at), id) where state not in ('queued', 'running');
