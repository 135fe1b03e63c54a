-- Faults of an alignment's sealed files, as `damage` of a run's.
create table alignment_damage (
    alignment_id blob not null references alignments (id) on delete cascade,
    path         text not null,
    fault        text not null,                  -- in words
    found_at     integer not null,               -- milliseconds since 1970, UTC
    primary key (alignment_id, path)
) strict, without rowid;

-- When all files of the alignment were last compared with their hashes; null: never.
alter table alignments add column scrubbed_at integer;
create index alignments_scrubbed on alignments (coalesce(scrubbed_at, ended_at), id) where ended_at is not null;
