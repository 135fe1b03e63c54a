//! Timeline of a traced pass: device activity, open ranges, launches, device time.

pub mod activity;
pub mod alone;
pub mod at_once;
pub mod capture;
pub mod decode_timeline;
pub mod device_time;
pub mod device_totals;
pub mod duration_stats;
pub mod engine_steps;
pub mod first_work;
pub mod framework_nests;
pub mod gpu;
pub mod graph_replays;
pub mod graphs;
pub mod inferred_steps;
pub mod launches;
pub mod open_at;
pub mod open_ranges;
pub mod processes;
pub mod range_groups;
pub mod recorded;
pub mod regions;
pub mod running;
pub mod stage_spans;
pub mod step_states;
pub mod steps;
pub mod steps_at;
pub mod tables;
pub mod time_shares;
pub mod unnamed;
pub mod withheld;

pub use llmprof_core::trace::interval;
