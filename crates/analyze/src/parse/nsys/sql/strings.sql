-- One row per string. The table also has environments: only strings in use are kept.
select {id} as id, {value} as value from StringIds
