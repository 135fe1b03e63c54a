-- One row per string that others name by id. It holds environments too: only those that are named are kept.
select {id} as id, {value} as value from StringIds
