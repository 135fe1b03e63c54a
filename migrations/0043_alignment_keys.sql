-- A key given by a client, so that a repeated submission finds its alignment. The same word of two owners names two; '' is nobody's.
alter table alignments add column idempotency_key text;
alter table alignments add column body_sha256 blob;
create unique index alignments_by_key on alignments (coalesce(owner, ''), idempotency_key) where idempotency_key is not null;
