-- Folders that are still to be removed: recorded in the commit that deletes the row of a run or an alignment, deleted once the folder is
-- gone. Until then the service tries again, also after a restart.
create table removals (
    id   blob not null,
    kind text not null check (kind in ('run', 'alignment')),
    primary key (id, kind)
) strict, without rowid;
