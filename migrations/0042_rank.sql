-- A rank of its own in each row, and an index that covers it: counting those that wait looked each of them up, since no index covers a
-- generated column or a state that only its condition names.
drop trigger waiting_submitted;
drop trigger waiting_left;
drop trigger waiting_returned;
drop trigger waiting_deleted;
drop index runs_waiting;
alter table runs drop column rank;
alter table runs add column rank integer not null default 0;
update runs set rank = queued_at - priority * 600000;
create index runs_waiting on runs (rank, id, state) where state = 'queued';

create trigger waiting_submitted after insert on runs when new.state = 'queued' begin
    insert into waiting (slot, runs) values (new.rank >> 8, 1) on conflict (slot) do update set runs = runs + 1;
end;
create trigger waiting_left after update of state on runs when old.state = 'queued' and new.state <> 'queued' begin
    update waiting set runs = runs - 1 where slot = old.rank >> 8;
    delete from waiting where slot = old.rank >> 8 and runs <= 0;
end;
create trigger waiting_returned after update of state on runs when old.state <> 'queued' and new.state = 'queued' begin
    insert into waiting (slot, runs) values (new.rank >> 8, 1) on conflict (slot) do update set runs = runs + 1;
end;
create trigger waiting_deleted after delete on runs when old.state = 'queued' begin
    update waiting set runs = runs - 1 where slot = old.rank >> 8;
    delete from waiting where slot = old.rank >> 8 and runs <= 0;
end;
