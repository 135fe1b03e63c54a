-- Steps of a run's earlier attempts. A later attempt may use one instead of repeating it, which is no further step in the figures.
create table earlier_steps (
    run_id     blob not null references runs (id) on delete cascade,
    step       text not null,
    started_at text not null,
    primary key (run_id, step, started_at)
) strict, without rowid;

drop trigger step_ended;
drop trigger step_told;

create trigger step_ended after update of ended_at on steps when old.ended_at is null and new.ended_at is not null
    and not exists (select 1 from earlier_steps as it where (it.run_id, it.step, it.started_at) = (new.run_id, new.step, new.started_at))
begin
    insert into step_durations (step, state, bucket, steps, seconds)
    select new.step, new.state,
           case when took <= 0.1 then 0 when took <= 1 then 1 when took <= 5 then 2 when took <= 15 then 3 when took <= 60 then 4
                when took <= 300 then 5 when took <= 900 then 6 when took <= 1800 then 7 when took <= 3600 then 8 else 9 end,
           1, took
    from (select max(0.0, (julianday(new.ended_at) - julianday(new.started_at)) * 86400.0) as took) where took is not null
    on conflict (step, state, bucket) do update set steps = steps + 1, seconds = seconds + excluded.seconds;
end;

create trigger step_told after insert on steps when new.ended_at is not null
    and not exists (select 1 from earlier_steps as it where (it.run_id, it.step, it.started_at) = (new.run_id, new.step, new.started_at))
begin
    insert into step_durations (step, state, bucket, steps, seconds)
    select new.step, new.state,
           case when took <= 0.1 then 0 when took <= 1 then 1 when took <= 5 then 2 when took <= 15 then 3 when took <= 60 then 4
                when took <= 300 then 5 when took <= 900 then 6 when took <= 1800 then 7 when took <= 3600 then 8 else 9 end,
           1, took
    from (select max(0.0, (julianday(new.ended_at) - julianday(new.started_at)) * 86400.0) as took) where took is not null
    on conflict (step, state, bucket) do update set steps = steps + 1, seconds = seconds + excluded.seconds;
end;
