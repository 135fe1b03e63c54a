-- One row per GPU of the host.
select {name} as name from TARGET_INFO_GPU order by {id}
