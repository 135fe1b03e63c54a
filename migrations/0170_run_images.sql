-- Images of runs by hash, for inputs that name them by it.
create index artifacts_of_inputs on artifacts (sha256) where path >= 'inputs/' and path < 'inputs0';
