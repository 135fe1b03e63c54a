//! `llmprof openapi`: prints the contract.

use anyhow::Result;
use clap::{Args, ValueEnum};
use llmprof_service::http;

use super::client::terminal;

/// Print the OpenAPI contract of the service; `contracts/profile.yaml` is this command's output
#[derive(Debug, Args)]
pub struct OpenapiOptions {
    #[arg(long, value_enum, default_value_t = OpenapiFormat::Yaml)]
    format: OpenapiFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OpenapiFormat {
    Yaml,
    Json,
}

pub fn run(options: &OpenapiOptions) -> Result<()> {
    let text = match options.format {
        OpenapiFormat::Yaml => http::contract_yaml(),
        OpenapiFormat::Json => serde_json::to_string_pretty(http::contract())? + "\n",
    };
    Ok(terminal::print(&text)?)
}
