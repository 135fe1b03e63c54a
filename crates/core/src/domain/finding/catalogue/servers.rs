//! Findings on servers under a load.

use super::*;

findings! {
    SERVER_NOT_READY = "server_not_ready", [Warning],
        fires_on: "the server was not ready within `ready.within_s`";
    CLIENT_OUTSIDE_RECORDING = "client_outside_recording", [Warning],
        fires_on: "the recording of a server may not contain all requests of its client";
    SESSION_ATTACHED = "session_attached", [Info],
        fires_on: "the loads of a run on a server session, to which the profiler stays attached";
    SESSION_ENDED = "session_ended", [Critical],
        fires_on: "the server session of a queued run ended";
    WINDOW_FAILED = "window_failed", [Warning],
        fires_on: "the recording window did not start or stop";
    WINDOW_BY_GATE = "window_by_gate", [Info],
        fires_on: "the server's own profiler recorded the window";
    WINDOWS_RECORDED = "windows_recorded", [Info],
        fires_on: "several windows were recorded; the report is of the first";
    WINDOW_CUT = "window_cut", [Warning],
        fires_on: "the load ended within the window";
    WINDOW_PROVEN = "window_proven", [Info],
        fires_on: "the window contains the requested prefills and decode steps";
    WINDOW_SHORT = "window_short", [Warning],
        fires_on: "the window contains fewer of them";
    WINDOW_UNPROVEN = "window_unproven", [Warning],
        fires_on: "the window has no range or launch that shows a prefill or a decode step";
    WINDOW_COST = "window_cost", [Info],
        fires_on: "latencies before, within and after the window, next to the unprofiled load";
    REQUESTS_FAILED = "requests_failed", [Warning],
        fires_on: "requests of a load failed";
    OUTPUTS_SHORT = "outputs_short", [Warning],
        fires_on: "requests returned fewer tokens than requested";
    LOAD_LATE = "load_late", [Warning],
        fires_on: "the client sent requests more than 1 ms late (p99)";
}
