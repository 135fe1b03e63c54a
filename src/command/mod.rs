//! The subcommands: options, and the pieces of the library that each puts together.

pub mod align;
pub mod analyze;
pub mod backup;
pub mod check;
pub mod cost;
pub mod diff;
pub mod doctor;
pub mod execute;
pub mod inspect;
pub mod openapi;
pub mod quickstart;
pub mod serve;
pub mod token;

/// The form of a report on standard output.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ReportFormat {
    Md,
    Json,
    Html,
}
