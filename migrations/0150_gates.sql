-- Decisions of gates, messages about regressions, and promised savings of runs. Times are milliseconds since 1970, UTC.

-- Decisions of gates. Those with an accepted regression are kept, of the others the newest of each baseline.
create table gates (
    id       integer primary key autoincrement,
    baseline text not null,
    accepted text,                               -- reason for which a regression was accepted
    report   text not null,                      -- JSON
    at       integer not null,
    by       text
) strict;
create index gates_by_baseline on gates (baseline, id);
create index gates_accepted on gates (id) where accepted is not null;

-- A gate of several runs had a row for each, some milliseconds apart.
insert into gates (baseline, accepted, report, at, by)
select baseline, reason, json_object(
           'verdict', 'regression', 'baseline', baseline, 'baseline_runs', json('[]'), 'runs', json_group_array(uuid),
           'series', null, 'figures', json('[]'), 'reasons', json('[]'), 'more_runs', json('false'), 'accepted', reason),
       min(at), by
from (
    select *, substr(hex, 1, 8) || '-' || substr(hex, 9, 4) || '-' || substr(hex, 13, 4) || '-' || substr(hex, 17, 4) || '-'
              || substr(hex, 21) as uuid
    from (select *, lower(hex(run_id)) as hex from accepted_regressions order by id)
)
group by baseline, reason, by, at / 10000 order by min(id);
drop table accepted_regressions;

-- Stage times, and savings that the run's findings promise, as JSON; null until they were read from its report.
alter table points add column savings text;

-- Changes to the worse that were reported to webhooks, or were there before webhooks had them.
create table announced_changes (
    series text not null references series (id) on delete cascade,
    figure text not null,
    run_id blob not null references runs (id) on delete cascade,
    primary key (series, figure, run_id)
) strict, without rowid;
create index announced_changes_by_run on announced_changes (run_id);
insert into announced_changes select series, figure, run_id from change_points;

-- Addresses by the events that they are notified of, replaced by the settings at start.
drop trigger run_ended;
create table subscriptions (
    target text not null,
    event  text not null,
    primary key (target, event)
) strict, without rowid;
insert into subscriptions select target, 'run_ended' from webhooks;
drop table webhooks;

-- A run may have several messages. Each is made once for a target.
drop index deliveries_due;
drop index deliveries_by_age;
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
    unique (message_id, target)
) strict;
-- Ids are not used again.
insert into sqlite_sequence (name, seq) select 'deliveries', seq from sqlite_sequence where name = 'old_deliveries';
insert into deliveries select * from old_deliveries;
drop table old_deliveries;
create index deliveries_due on deliveries (next_at) where state = 'pending';
create index deliveries_by_age on deliveries (created_at);

create trigger run_ended after update of state on runs
when new.state not in ('queued', 'running') and old.state in ('queued', 'running') begin
    insert or ignore into deliveries (message_id, run_id, target, body, created_at, next_at)
    select message_id, run_id, target, body, coalesce(new.ended_at, 0), coalesce(new.ended_at, 0)
    from subscriptions join run_messages on run_id = new.id where event = 'run_ended';
end;
