//! A submission of a command: checked against the commands and devices of this host.

use llmprof_core::domain::{
    command::{CommandCall, CommandTarget},
    profiling::Profiling,
    settings::{Settings, nearest},
    subject::{CommandSubject, RunSpec, Subject},
};

use super::{
    checks::{check_passes, check_window},
    submissions::SubmitCommand,
    submit::CheckedRun,
    submit_session,
};
use crate::http::{
    auth::access::Caller,
    error::{ApiError, ErrorCode},
    state::App,
};

/// Checks a submission of a command and fills in the defaults.
pub(super) async fn check(
    app: &App,
    caller: &Caller,
    run: SubmitCommand,
) -> Result<CheckedRun, ApiError> {
    let call = &run.target;
    call.check_form().map_err(|message| ApiError::new(ErrorCode::InvalidRequest, message))?;
    let (mut passes, common) = check_passes(app, &run.passes())?;
    let command = find_command(app, &call.command)?;
    let session = match call.session {
        Some(id) => Some(submit_session::find_session(app, caller, id).await?),
        None => None,
    };
    let call = match &session {
        Some(session) => submit_session::merge_call(call, &session.spec, command)?,
        None => call.clone(),
    };
    let plan = command
        .plan(&call, &app.models)
        .map_err(|error| ApiError::new(ErrorCode::ParamsUnfit, error.to_string()))?;
    check_gpu_count(app, &run.device, plan.gpus)?;
    let gpus = Some(plan.gpus).filter(|gpus| *gpus > 0);
    let call = CommandCall { params: plan.params, gpus, ..call };
    let dry_run = run.dry_run;
    let change = run.profiling.unwrap_or_default();
    match &session {
        Some(session) => submit_session::fix_passes(&mut passes, &change, &session.spec)?,
        None => {
            let window = |it| with_recording_window(it, &change, command);
            passes.profiling = passes.profiling.map(window);
            check_window(&passes, &common)?;
        }
    }
    let subject = Subject::Command(CommandSubject { call, passes });
    Ok(CheckedRun { spec: RunSpec { subject, common }, inputs: None, dry_run })
}

pub(crate) fn find_command<'a>(app: &'a App, name: &str) -> Result<&'a CommandTarget, ApiError> {
    app.targets.get(name).ok_or_else(|| {
        let names = app.targets.keys().map(String::as_str);
        let hint = match nearest(name, names.clone()) {
            Some(near) => format!("did you mean {near}?"),
            None if app.targets.is_empty() => {
                "this host allows none; configure server.targets".to_owned()
            }
            None => format!("available: {}", names.collect::<Vec<_>>().join(", ")),
        };
        ApiError::new(ErrorCode::CommandNotFound, format!("no command {name}; {hint}"))
    })
}

/// Refuses a run that would wait forever: it requests more GPUs than there are.
pub(crate) fn check_gpu_count(app: &App, device: &str, gpus: u32) -> Result<(), ApiError> {
    let available = app.devices.iter().filter(|it| it.matches(device) && !it.is_cpu()).count();
    if gpus < 2 || app.devices.is_empty() || available >= gpus as usize {
        return Ok(());
    }
    let message = format!(
        "target.gpus: {gpus} GPUs requested, but only {available} match the device {device}"
    );
    Err(ApiError::new(ErrorCode::DeviceNotFound, message))
}

/// Sets the command's delay and duration of the recording, each unless the request sets it or the
/// command has none.
pub(super) fn with_recording_window(
    mut profiling: Profiling,
    change: &Settings,
    command: &CommandTarget,
) -> Profiling {
    let sets = |key: &str| change.get("nsys").is_some_and(|nsys| nsys.get(key).is_some());
    let nsys = &mut profiling.nsys;
    for (key, own, of_command) in [
        ("delay_s", &mut nsys.delay_s, command.delay_s),
        ("duration_s", &mut nsys.duration_s, command.duration_s),
    ] {
        if !sets(key) && of_command > 0 {
            *own = of_command;
        }
    }
    profiling
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::mode::Mode;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn delay_and_duration_are_of_the_request_then_of_the_command_then_of_the_mode() {
        let window = |command: &str, change: Value| {
            let text = format!("description = \"a\"\nprogram = \"a\"\nargs = []\n{command}");
            let command: CommandTarget = toml::from_str(&text).unwrap();
            let mut mode = Profiling::bundled(&Mode::LIGHT).unwrap();
            (mode.nsys.delay_s, mode.nsys.duration_s) = (1, 3);
            let Value::Object(change) = change else { panic!("a change is an object") };
            let of_request = mode.with_changes(change.clone()).unwrap();
            let nsys = with_recording_window(of_request, &change, &command).nsys;
            (nsys.delay_s, nsys.duration_s)
        };
        assert_eq!(window("", json!({})), (1, 3));
        assert_eq!(window("delay_s = 50", json!({})), (50, 3));
        assert_eq!(window("delay_s = 50", json!({"nsys": {"duration_s": 10}})), (50, 10));
        assert_eq!(window("delay_s = 50\nduration_s = 9", json!({"nsys": {"delay_s": 0}})), (0, 9));
    }
}
