-- Stored inputs: samples, each a prompt and images. The files are in the data folder, each content once.
create table inputs (
    id         blob primary key,                 -- uuid version 7: sorts by upload
    owner      text not null,                    -- name of the token; empty where tokens are not required
    sha256     text not null,                    -- of the prompts and the hashes of the images
    name       text not null,
    samples    integer not null,
    images     integer not null,
    bytes      integer not null,                 -- of its images, each content once
    created_at integer not null,                 -- milliseconds since 1970, UTC, as used_at
    used_at    integer not null,                 -- last upload or submission
    prompt     text not null,                    -- start of the first prompt
    content    text not null,                    -- JSON: samples and images
    unique (owner, sha256)
) strict;
create index inputs_by_use on inputs (used_at);

-- The contents that inputs name.
create table input_contents (
    sha256    text not null,
    inputs_id blob not null references inputs (id) on delete cascade,
    primary key (sha256, inputs_id)
) strict, without rowid;
create index input_contents_by_inputs on input_contents (inputs_id);

-- The stored inputs of a run. Rows of ended runs are deleted with the inputs: a run keeps a copy in its folder.
create table run_inputs (
    run_id    blob primary key references runs (id) on delete cascade,
    inputs_id blob not null references inputs (id)
) strict, without rowid;
create index run_inputs_by_inputs on run_inputs (inputs_id);
