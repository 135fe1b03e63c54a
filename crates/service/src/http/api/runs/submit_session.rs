//! A submission of a run on a session: its command, device and traced APIs are the session's.

use llmprof_core::domain::{
    command::{CommandCall, CommandTarget},
    ids::SessionId,
    profiling::{CaptureRange, CpuScope, NsysSettings},
    session::SessionSpec,
    settings::Settings,
    subject::Passes,
};

use crate::{
    http::{
        api::sessions,
        auth::access::{Caller, check_owner},
        error::{ApiError, ErrorCode},
        state::App,
    },
    store::StoredSession,
};

/// Returns the session if the caller may submit runs for it.
pub(super) async fn find_session(
    app: &App,
    caller: &Caller,
    id: SessionId,
) -> Result<StoredSession, ApiError> {
    let session = sessions::find(app, id).await?;
    check_owner(caller, "session", session.owner.clone())?;
    if session.state.accepts_runs() {
        return Ok(session);
    }
    Err(ended(id, &format!("is {}", session.state)))
}

/// The error of a session that accepts no runs any more.
pub(super) fn ended(id: SessionId, how: &str) -> ApiError {
    let message = format!("the session {id} {how}; start one by POST /sessions");
    ApiError::new(ErrorCode::SessionEnded, message)
}

/// The call with the parameters of the session; parameters of the load may be replaced.
pub(super) fn merge_call(
    call: &CommandCall,
    session: &SessionSpec,
    command: &CommandTarget,
) -> Result<CommandCall, ApiError> {
    if call.command != session.call.command {
        let message = format!(
            "target.command: the session runs {}, not {}",
            session.call.command, call.command
        );
        return Err(ApiError::new(ErrorCode::RequestContradictory, message));
    }
    let mut params = session.call.params.clone();
    for (name, value) in &call.params {
        let param = command.params.get(name);
        let value = param.map_or_else(|| value.clone(), |param| param.normalised(value.clone()));
        if command.is_of_program(name) && params.get(name) != Some(&value) {
            let message = format!(
                "target.params.{name}: the server of the session was started with another value; \
                 start a session with this one"
            );
            return Err(ApiError::new(ErrorCode::ParamsUnfit, message));
        }
        params.insert(name.clone(), value);
    }
    let gpus = call.gpus.or(session.call.gpus);
    if gpus != session.call.gpus {
        let message = "target.gpus: the session has another number of GPUs";
        return Err(ApiError::new(ErrorCode::RequestContradictory, message));
    }
    Ok(CommandCall { params, gpus, ..call.clone() })
}

/// Sets the device, the traced APIs and the widest scope of CPU sampling of the session; a request
/// for others is refused.
pub(super) fn fix_passes(
    passes: &mut Passes,
    change: &Settings,
    session: &SessionSpec,
) -> Result<(), ApiError> {
    let refuse = |message: String| Err(ApiError::new(ErrorCode::RequestContradictory, message));
    if passes.device != "auto" && passes.device != session.device {
        return refuse(format!("device: the session holds {}; leave it out", session.device));
    }
    passes.device.clone_from(&session.device);
    let Some(profiling) = &mut passes.profiling else { return Ok(()) };
    // The profiler of other sessions is in a process tree of its own.
    let widest =
        if session.nsys.is_system_wide() { CpuScope::SystemWide } else { CpuScope::ProcessTree };
    let fixed = NsysSettings {
        trace: session.nsys.trace.clone(),
        trace_on_cpu: session.nsys.trace_on_cpu.clone(),
        cuda_graph_trace: session.nsys.cuda_graph_trace,
        delay_s: 0,
        duration_s: 0,
        capture_range: CaptureRange::None,
        sample: profiling.nsys.sample.min(widest),
        cpuctxsw: profiling.nsys.cpuctxsw.min(widest),
        ..profiling.nsys.clone()
    };
    let requested = change.get("nsys").and_then(|nsys| nsys.as_object());
    let asked = serde_json::to_value(&profiling.nsys).unwrap_or_default();
    let given = serde_json::to_value(&fixed).unwrap_or_default();
    let differs = |key: &&String| asked.get(key.as_str()) != given.get(key.as_str());
    if let Some(key) = requested.and_then(|it| it.keys().find(differs)) {
        return refuse(format!(
            "profiling.nsys.{key}: fixed by the session, which records windows; start a session \
             with another mode"
        ));
    }
    profiling.nsys = fixed;
    Ok(())
}
