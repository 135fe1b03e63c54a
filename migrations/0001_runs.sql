-- A run, its steps, its labels, its artifacts. Times are milliseconds since 1970, UTC.
create table runs (
    id               blob primary key,           -- uuid version 7: sorts by submission
    model            text not null,
    device           text not null,              -- as asked: auto, cpu, cuda:0
    priority         integer not null,
    spec             text not null,              -- JSON, every default filled in
    state            text not null check (state in ('queued', 'running', 'succeeded', 'partial', 'failed', 'cancelled')),
    attempts         integer not null default 0,
    queued_at        integer not null,
    started_at       integer,                    -- of the last attempt
    ended_at         integer,
    worker           text,
    lease_until      integer,
    cancel_requested integer not null default 0,
    failed_step      text,
    message          text,                       -- why it failed, in one line
    findings         text not null default '[]'  -- JSON
) strict, without rowid;

create index runs_waiting on runs (priority desc, id) where state = 'queued';
create index runs_leased on runs (lease_until) where state = 'running';
create index runs_by_state on runs (state, id);
create index runs_by_model on runs (model, id);

create table labels (
    label  text not null,
    run_id blob not null references runs (id) on delete cascade,
    primary key (label, run_id)
) strict, without rowid;
create index labels_by_run on labels (run_id);

create table steps (
    run_id     blob not null references runs (id) on delete cascade,
    position   integer not null,
    step       text not null,
    state      text not null,
    started_at text not null,
    ended_at   text,
    exit_code  integer,
    message    text,
    primary key (run_id, position)
) strict, without rowid;

create table artifacts (
    run_id     blob not null references runs (id) on delete cascade,
    path       text not null,
    bytes      integer not null,
    sha256     text not null,
    media_type text not null,
    step       text,
    primary key (run_id, path)
) strict, without rowid;

-- A key given by a client, so that a repeated submission finds its run.
create table idempotency (
    key         text primary key,
    body_sha256 blob not null,
    run_id      blob not null references runs (id) on delete cascade
) strict, without rowid;
create index idempotency_by_run on idempotency (run_id);

-- How many runs wait per priority, kept by triggers, so that a queue position costs a few rows and not a scan.
create table waiting (
    priority integer primary key,
    runs     integer not null
) strict;

create trigger waiting_submitted after insert on runs when new.state = 'queued' begin
    insert into waiting (priority, runs) values (new.priority, 1) on conflict (priority) do update set runs = runs + 1;
end;
create trigger waiting_left after update of state on runs when old.state = 'queued' and new.state <> 'queued' begin
    update waiting set runs = runs - 1 where priority = old.priority;
end;
create trigger waiting_returned after update of state on runs when old.state <> 'queued' and new.state = 'queued' begin
    insert into waiting (priority, runs) values (new.priority, 1) on conflict (priority) do update set runs = runs + 1;
end;
create trigger waiting_deleted after delete on runs when old.state = 'queued' begin
    update waiting set runs = runs - 1 where priority = old.priority;
end;
