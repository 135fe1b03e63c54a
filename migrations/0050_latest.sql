-- The latest submission of those that wait, ageing set aside: one that comes after them ranks behind it, whatever the clock shows.
create index runs_latest on runs (rank + priority * 600000) where state = 'queued';
