//! `llmprof openapi`: prints the contract.

use std::io::Write;

use anyhow::Result;
use clap::{Args, ValueEnum};
use llmprof::http;

/// Print the OpenAPI contract of the service; `contracts/profile.yaml` is this command's output
#[derive(Debug, Args)]
pub struct Options {
    #[arg(long, value_enum, default_value_t = Format::Yaml)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Yaml,
    Json,
}

pub fn run(options: &Options) -> Result<()> {
    let text = match options.format {
        Format::Yaml => http::contract_yaml(),
        Format::Json => serde_json::to_string_pretty(http::contract())? + "\n",
    };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
