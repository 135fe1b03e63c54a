-- The subject of a run is a type: a model, a part of one, a command or an import, each with the fields that it has. Until now every run
-- had a model's fields, and stand-ins for those that it lacked (src/run/legacy.rs reads that form in sealed folders).
alter table runs add column kind text not null default 'model';
update runs set kind = case when json_type(spec, '$.import') = 'object' then 'import'
                            when json_type(spec, '$.target') = 'object' then 'command'
                            when json_type(spec, '$.target') = 'text' then 'part'
                            else 'model' end;

-- What lists show: the name of the model, of the command or of the capture.
alter table runs rename column model to name;

-- The device as it was requested; null where none is needed.
alter table runs add column requested_device text;
update runs set requested_device = device where kind <> 'import';
alter table runs drop column device;
alter table runs rename column requested_device to device;

-- An import has no mode.
update runs set mode = '' where kind = 'import';

update runs set spec = json_object(
    'subject', json(case kind
        when 'import' then json_object(
            'kind', kind, 'name', spec ->> '$.model', 'model', null, 'files', json(spec -> '$.import.files'),
            'stages', json(spec -> '$.import.stages'), 'within', json(spec -> '$.import.within'),
            'without', json(spec -> '$.import.without'))
        when 'command' then json_object('kind', kind, 'call', json(spec -> '$.target'), 'passes', json(passes))
        when 'part' then json_object(
            'kind', kind, 'workload', json(workload), 'part', spec ->> '$.target', 'align_with', spec ->> '$.align_with',
            'mock', json(spec -> '$.mock'), 'passes', json(passes))
        else json_object('kind', kind, 'workload', json(workload), 'passes', json(passes)) end),
    'common', json_object(
        'labels', json(spec -> '$.labels'), 'priority', spec ->> '$.priority', 'timeout_s', spec ->> '$.timeout_s'))
from (
    select id as of_run,
           json_object('mode', spec ->> '$.mode', 'repeats', spec ->> '$.repeats', 'warmup', spec ->> '$.warmup',
                       'device', spec ->> '$.device', 'profiling', json(spec -> '$.profiling')) as passes,
           json_object('model', spec ->> '$.model', 'inputs_manifest', spec ->> '$.inputs_manifest',
                       'max_new_tokens', spec ->> '$.max_new_tokens', 'seed', spec ->> '$.seed', 'dtype', spec ->> '$.dtype') as workload
    from runs
) where of_run = runs.id;
