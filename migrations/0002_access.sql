-- Who may ask: tokens, each kept as its hash alone; whose a run is. Times are milliseconds since 1970, UTC.
create table tokens (
    id           integer primary key,
    name         text not null unique,           -- for ever: a revoked name is not given to somebody else, whose runs these would be
    role         text not null check (role in ('viewer', 'submitter', 'admin')),
    sha256       blob not null unique,
    created_at   integer not null,
    expires_at   integer,
    revoked_at   integer,
    last_used_at integer                         -- to the minute
) strict;

-- The name of the token that submitted it; null: the service asked for none.
alter table runs add column owner text;
create index runs_by_owner on runs (owner, state) where owner is not null;

-- A key is its owner's: the same word of two people names two submissions. '' is nobody's.
alter table idempotency rename to idempotency_of_all;
create table idempotency (
    owner       text not null,
    key         text not null,
    body_sha256 blob not null,
    run_id      blob not null references runs (id) on delete cascade,
    primary key (owner, key)
) strict, without rowid;
insert into idempotency select '', key, body_sha256, run_id from idempotency_of_all;
drop table idempotency_of_all;
create index idempotency_by_run on idempotency (run_id);

-- A run that waits gains one point of priority in ten minutes. All gain alike, so the order never changes while they wait, and
-- is known when they are submitted: lowest rank first.
alter table runs add column rank integer generated always as (queued_at - priority * 600000) virtual;
drop index runs_waiting;
create index runs_waiting on runs (rank, id) where state = 'queued';

-- How many runs wait per quarter of a second of rank, so that a position costs a few rows and not a scan.
drop trigger waiting_submitted;
drop trigger waiting_left;
drop trigger waiting_returned;
drop trigger waiting_deleted;
drop table waiting;
create table waiting (
    slot integer primary key,
    runs integer not null
) strict;
insert into waiting select rank >> 8, count(*) from runs where state = 'queued' group by 1;

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
