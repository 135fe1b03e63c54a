-- Path of the part that a run executes, if it is not the whole model: retention counts its runs apart, and reads the index alone.
alter table runs add column part text;
update runs set part = json_extract(spec, '$.subject.part') where kind = 'part';
drop index runs_ended;
create index runs_ended on runs (id, name, mode, part, state, queued_at, ended_at, pinned, packed_at)
    where state not in ('queued', 'running');
