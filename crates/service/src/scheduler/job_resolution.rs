//! Resolves a claimed run to its job spec by the settings of this service, so that the job needs
//! neither the database nor the service.

use llmprof_core::domain::{
    command::{CommandCall, CommandPlan},
    session::SessionSpec,
    subject::{Passes, Subject},
};

use crate::{
    job::job_spec::{JobSpec, JobSubject},
    scheduler::Context,
    store::ClaimedRun,
};

/// The job spec of a claimed run. The error names a setting that is no longer configured.
pub fn resolve(run: &ClaimedRun, cx: &Context) -> Result<JobSpec, String> {
    let manifest = run.spec.workload().map_or("", |it| &it.inputs_manifest);
    Ok(JobSpec {
        id: run.id,
        folder: cx.folder,
        attempt: run.attempt,
        subject: resolve_subject(&run.spec.subject, cx)?,
        inputs: cx.inputs.root(manifest).to_owned(),
        devices: cx.config.worker.devices.clone(),
        gpus: 0,
        tools: cx.config.tools.clone(),
        limits: cx.config.limits.clone(),
        grace_s: cx.config.worker.grace_s,
        spec: run.spec.clone(),
        device: None,
        state: None,
        other_gpus: Vec::new(),
        session: None,
    })
}

fn resolve_subject(subject: &Subject, cx: &Context) -> Result<JobSubject, String> {
    let profiling = |passes: &Passes| {
        let settings = passes
            .profiling
            .as_ref()
            .or_else(|| Some(&cx.presets.get(&passes.mode)?.profiling))
            .cloned();
        settings.ok_or_else(|| format!("mode {} is no longer configured", passes.mode))
    };
    let of_model = |name: &str, passes: &Passes| {
        let model = cx.models.get(name).cloned();
        let model = model.ok_or_else(|| format!("model {name} is no longer configured"))?;
        Ok(JobSubject::Model { model, profiling: profiling(passes)? })
    };
    match subject {
        Subject::Model(it) => of_model(&it.workload.model, &it.passes),
        Subject::Part(it) => of_model(&it.workload.model, &it.passes),
        Subject::Command(it) => {
            let plan = resolve_command(&it.call, cx)?;
            Ok(JobSubject::Command { plan, profiling: profiling(&it.passes)? })
        }
        Subject::Import(_) => Ok(JobSubject::Import),
    }
}

/// The server of a session by the current settings.
pub fn resolve_session(spec: &SessionSpec, cx: &Context) -> Result<CommandPlan, String> {
    resolve_command(&spec.call, cx)
}

/// The command by the current settings, which may have changed since the submission.
fn resolve_command(call: &CommandCall, cx: &Context) -> Result<CommandPlan, String> {
    let command = cx
        .targets
        .get(&call.command)
        .ok_or_else(|| format!("command {} is no longer configured", call.command))?;
    command.plan(call, &cx.models).map_err(|error| format!("command {}: {error}", call.command))
}
