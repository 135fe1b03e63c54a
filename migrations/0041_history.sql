-- How long runs of a model took is looked up among those that came to their end, however many wait.
create index runs_done on runs (model, id) where state in ('succeeded', 'partial');
