-- Ids of the text that names the start of recording CUDA in a process.
select {id} as id from StringIds
where {value} = 'CUDA profiling initialization'
limit 8
