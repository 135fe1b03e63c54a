//! The subcommands: options, and the pieces of the library that each puts together.

pub mod analyze;
pub mod openapi;
pub mod quickstart;
pub mod serve;
