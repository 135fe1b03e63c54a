-- GPUs that a run gets at once, and the devices of one that is carried out: JSON, the names of all where they are several; null else.
alter table runs add column gpus integer not null default 1;
alter table runs add column devices text;
