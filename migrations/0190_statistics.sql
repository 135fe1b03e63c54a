-- Figures of a point that are means in place of medians, as JSON; null until they were read from the run's report.
alter table points add column means text;
