//! `llmprof token`: makes, lists and revokes the tokens of a data folder, also while a service uses
//! it.
//!
//! A token's text is printed once and kept nowhere.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use llmprof_service::{
    config::Config,
    store::{
        Role, Store,
        audit::{AuditEntry, AuditLog},
    },
};
use sha2::{Digest, Sha256};

use super::{
    client::terminal::{print_line, print_notice},
    serve,
};

/// Prefix of every token, for scanners of secrets.
const PREFIX: &str = "llmprof_";

/// Create, list and revoke the tokens of a service
#[derive(Debug, Args)]
pub struct TokenOptions {
    #[command(subcommand)]
    command: TokenCommand,
    /// Folder of the database and the runs [default: ./data]
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    /// File with settings that override the defaults
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Create a token and print it once
    Create {
        /// Role: viewer (read), submitter (submit, and cancel and delete its own runs) or admin
        /// (everything)
        #[arg(long)]
        role: Role,
        /// Owner: 1 to 64 letters, digits and . _ @ -. Shown with runs and in the audit log
        #[arg(long, value_parser = name)]
        name: String,
        /// Validity, as in 12h or 90d [default: until it is revoked]
        #[arg(long, value_name = "TIME", value_parser = time)]
        expires: Option<Duration>,
    },
    /// List the tokens: names, roles, times
    List,
    /// Revoke a token permanently, by its name or number
    Revoke {
        #[arg(value_name = "NAME|ID")]
        token: String,
    },
}

pub fn run(options: &TokenOptions) -> Result<()> {
    serve::create_private_files();
    let config = Config::load(options.config.as_deref())?;
    let data = options.data.clone().unwrap_or(config.server.data);
    std::fs::create_dir_all(&data)
        .with_context(|| format!("cannot make the folder {}", data.display()))?;
    let audit = AuditLog::open(&data)
        .with_context(|| format!("cannot write the audit log in {}", data.display()))?;
    serve::runtime()?.block_on(async {
        let store = Store::open(&data.join("llmprof.db")).await?;
        match &options.command {
            TokenCommand::Create { role, name, expires } => {
                let text = generate()?;
                let digest = Sha256::digest(text.as_bytes()).into();
                let Some(_) = store.create_token(name, *role, &digest, *expires).await? else {
                    bail!(
                        "token {name} exists or existed; choose another name, because runs keep \
                         their owner"
                    );
                };
                audit.add(&AuditEntry::on_host("token create", name))?;
                print_notice(format_args!(
                    "token {name}, role {role}: keep it, it is not shown again"
                ));
                print_line(format_args!("{text}"))?;
            }
            TokenCommand::List => list(&store).await?,
            TokenCommand::Revoke { token } => {
                let Some(name) = store.revoke_token(token).await? else {
                    bail!("there is no valid token {token}; `llmprof token list` shows them");
                };
                audit.add(&AuditEntry::on_host("token revoke", &name))?;
                print_notice(format_args!("revoked token {name:?}"));
            }
        }
        Ok(())
    })
}

async fn list(store: &Store) -> Result<()> {
    let never = |time: Option<String>| time.unwrap_or_else(|| "-".into());
    print_line(format_args!(
        "{:<4} {:<24} {:<10} {:<8} {:<25} {:<25} LAST USED",
        "ID", "NAME", "ROLE", "STATE", "CREATED", "EXPIRES"
    ))?;
    for token in store.tokens().await? {
        let state = match (token.valid, &token.revoked_at) {
            (true, _) => "valid",
            (false, Some(_)) => "revoked",
            (false, None) => "expired",
        };
        let (created, expires, used) =
            (token.created_at, never(token.expires_at), never(token.last_used_at));
        print_line(format_args!(
            "{:<4} {:<24} {:<10} {state:<8} {created:<25} {expires:<25} {used}",
            token.id, token.name, token.role
        ))?;
    }
    Ok(())
}

/// 256 bits from the operating system, in hexadecimal.
fn generate() -> Result<String> {
    let mut bits = [0_u8; 32];
    getrandom::fill(&mut bits).map_err(|error| {
        anyhow::anyhow!("the operating system gives no random numbers: {error}")
    })?;
    Ok(bits.iter().fold(PREFIX.to_owned(), |text, byte| text + &format!("{byte:02x}")))
}

fn name(text: &str) -> Result<String, String> {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte));
    if !plain || !(1..=64).contains(&text.len()) || text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("1 to 64 letters, digits and . _ @ -, and not digits alone".into());
    }
    Ok(text.to_owned())
}

fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "a whole number of hours or days from 1h to 3650d, as in 12h or 90d".to_owned();
    let (count, seconds) = match text.strip_suffix('d') {
        Some(days) => (days, 86_400),
        None => (text.strip_suffix('h').ok_or_else(wrong)?, 3_600),
    };
    let seconds =
        count.parse::<u64>().ok().and_then(|count| count.checked_mul(seconds)).ok_or_else(wrong)?;
    if !(3_600..=3_650 * 86_400).contains(&seconds) {
        return Err(wrong());
    }
    Ok(Duration::from_secs(seconds))
}
