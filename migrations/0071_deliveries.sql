-- Messages about ended runs. Each has its id and its text from the commit that ends the run, so it outlives the run; it is kept for a
-- while after it was delivered or given up, and can be sent again.
drop trigger run_ended;
drop index deliveries_due;
alter table deliveries rename to old_deliveries;

create table deliveries (
    id           integer primary key autoincrement,
    message_id   text not null,                  -- globally unique, the same in every attempt
    run_id       blob not null,
    target       text not null,
    body         text not null,                  -- JSON
    created_at   integer not null,
    state        text not null default 'pending' check (state in ('pending', 'delivered', 'failed')),
    attempts     integer not null default 0,     -- failed ones
    next_at      integer not null,
    delivered_at integer,
    error        text,                           -- of the last failed attempt
    unique (run_id, target)
) strict;
create index deliveries_due on deliveries (next_at) where state = 'pending';
create index deliveries_by_age on deliveries (created_at);

create view run_messages as
select runs.id as run_id,
       'run_ended_' || uuid as message_id,
       json_object(
           'event', 'run_ended', 'run_id', uuid, 'state', state, 'name', name, 'kind', kind, 'mode', nullif(mode, ''),
           'labels', spec -> '$.common.labels', 'owner', owner, 'failed_step', failed_step,
           'message', message, 'queued_at', strftime('%Y-%m-%dT%H:%M:%fZ', queued_at / 1000.0, 'unixepoch'),
           'ended_at', strftime('%Y-%m-%dT%H:%M:%fZ', ended_at / 1000.0, 'unixepoch'),
           'link', '/runs/' || uuid) as body
from runs join (
    select id as of_run, substr(hex, 1, 8) || '-' || substr(hex, 9, 4) || '-' || substr(hex, 13, 4) || '-' || substr(hex, 17, 4) || '-'
                         || substr(hex, 21) as uuid
    from (select id, lower(hex(id)) as hex from runs)
) on of_run = runs.id;

insert into deliveries (message_id, run_id, target, body, created_at, state, attempts, next_at, error)
select message_id, old.run_id, target, body, old.next_at, case when gave_up then 'failed' else 'pending' end, attempts, next_at, error
from old_deliveries as old join run_messages on run_messages.run_id = old.run_id;
drop table old_deliveries;

create trigger run_ended after update of state on runs
when new.state not in ('queued', 'running') and old.state in ('queued', 'running') begin
    insert or ignore into deliveries (message_id, run_id, target, body, created_at, next_at)
    select message_id, run_id, target, body, coalesce(new.ended_at, 0), coalesce(new.ended_at, 0)
    from webhooks join run_messages on run_id = new.id;
end;
