//! Child processes: started, limited, read while they run, and always ended.

pub mod argv;
pub mod child;
pub mod disk_quota;
pub mod job_process;
pub mod line_stream;
pub mod loader_errors;
pub mod orphans;
pub mod output;
pub mod ports;
pub mod resources;
pub mod stall;
pub mod start;
pub mod watch;
