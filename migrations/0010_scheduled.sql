-- Where a run stands with the cluster's scheduler: its job, that job's state, what it waits for. JSON; null without one.
alter table runs add column scheduled text;
