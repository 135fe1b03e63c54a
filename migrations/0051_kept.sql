-- What keeping old runs asks of each that has ended, in an index that covers it and a narrow table: it read every row, with all
-- settings of the run's passes, and every file of every run. The mode stands in the run's spec; an index takes columns alone.
alter table runs add column mode text not null default '';
update runs set mode = coalesce(json_extract(spec, '$.mode'), '');
create index runs_ended on runs (id, model, mode, state, queued_at, ended_at, pinned, packed_at) where state not in ('queued', 'running');

-- Bytes on disk of each run's artifacts, kept by triggers.
create table sizes (
    run_id blob primary key references runs (id) on delete cascade,
    bytes  integer not null
) strict, without rowid;
insert into sizes select run_id, sum(coalesce(stored_bytes, bytes)) from artifacts group by run_id;

create trigger sizes_grow after insert on artifacts begin
    insert into sizes (run_id, bytes) values (new.run_id, coalesce(new.stored_bytes, new.bytes))
    on conflict (run_id) do update set bytes = bytes + excluded.bytes;
end;
create trigger sizes_change after update of bytes, stored_bytes on artifacts begin
    update sizes set bytes = bytes + coalesce(new.stored_bytes, new.bytes) - coalesce(old.stored_bytes, old.bytes) where run_id = new.run_id;
end;
create trigger sizes_shrink after delete on artifacts begin
    update sizes set bytes = bytes - coalesce(old.stored_bytes, old.bytes) where run_id = old.run_id;
end;
