//! Settings of the service, and the parts that they configure: devices, tools, certificate, Slurm.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use llmprof_core::domain::device::{Device, is_device};
use llmprof_service::{
    collect::{Collector, tools::is_program},
    config::{self, Config, RunLimits, TokenPolicy, ToolSettings},
    http::{Certificate, ConnectionLimits},
    scheduler::{self, executor::slurm::SlurmExecutor},
};

use super::ServeOptions;

/// Value of a tool's setting that disables the tool.
const OFF: &str = "none";
/// Descriptors that connections leave for the database, runs and their children.
const RESERVED: u64 = 256;

/// Loads the settings of all sources; flags override the others.
pub fn settings(options: &ServeOptions) -> Result<Config> {
    let mut config = Config::load(options.config.as_deref())?;
    let server = &mut config.server;
    if let Some(listen) = &options.listen {
        server.listen.clone_from(listen);
    }
    if let Some(data) = &options.data {
        server.data.clone_from(data);
    }
    if let Some(inputs) = &options.inputs {
        server.inputs.clone_from(inputs);
    }
    server.behind_proxy |= options.behind_proxy;
    Ok(config)
}

/// Creates the Slurm executor, if this host has Slurm's commands.
pub fn slurm(config: &Config, cx: &scheduler::Context) -> Result<Arc<SlurmExecutor>> {
    if let Some(missing) = llmprof_service::collect::tools::slurm::missing_program() {
        bail!(
            "setting executor.kind: {missing} is not on PATH; install Slurm's commands on this \
             host, or set it to \"local\""
        );
    }
    let settings = config.executor.slurm.clone();
    let program = match given(&settings.program) {
        Some(program) => program.to_owned(),
        None => config::environment::executable()
            .context("cannot find the path of llmprof; set executor.slurm.program")?,
    };
    Ok(Arc::new(SlurmExecutor::new(settings, cx.runs.clone(), program)))
}

/// Loads the certificate of the settings, if set.
pub fn certificate(server: &config::ServerSettings) -> Result<Option<Certificate>> {
    match (given(&server.tls.certificate), given(&server.tls.key)) {
        (None, None) => Ok(None),
        (Some(chain), Some(key)) => {
            Ok(Some(Certificate::read(chain, key).context("settings server.tls")?))
        }
        _ => bail!("settings server.tls: certificate and key must be set together"),
    }
}

/// Limits of connections, with which descriptors are left for runs; `descriptors` is the limit of
/// this process.
pub fn connection_limits(
    server: &config::ServerSettings,
    address: SocketAddr,
    descriptors: Option<u64>,
) -> ConnectionLimits {
    let configured = u64::from(server.connections);
    // A download has two descriptors.
    let possible = descriptors.map_or(configured, |it| it.saturating_sub(RESERVED).max(32) / 2);
    if possible < configured {
        tracing::warn!(
            "at most {possible} connections are accepted instead of {configured}: the limit of \
             open files is {}; raise it (ulimit -Hn)",
            descriptors.unwrap_or_default()
        );
    }
    // Behind a proxy and on this host, all clients have one address.
    let is_shared = server.behind_proxy || address.ip().is_loopback();
    let per_address = Some(server.connections_per_address as usize);
    ConnectionLimits {
        total: usize::try_from(possible.min(configured)).unwrap_or(usize::MAX),
        per_address: per_address.filter(|limit| *limit > 0 && !is_shared),
        write_timeout: Duration::from_secs(server.write_s.into()),
    }
}

/// Rejects a public address without encryption or without authentication.
pub fn check_address(
    address: SocketAddr,
    config: &Config,
    encrypted: bool,
    valid_token: bool,
) -> Result<()> {
    let (proxy, tokens) = (config.server.behind_proxy, config.access.tokens);
    if address.ip().is_loopback() && !proxy {
        return Ok(());
    }
    if !encrypted && !proxy {
        bail!(
            "refusing to listen on {address} without encryption; set server.tls.certificate and \
             server.tls.key, listen on 127.0.0.1, or pass --behind-proxy if a proxy terminates TLS"
        );
    }
    if tokens == TokenPolicy::Off && !proxy {
        bail!(
            "refusing to listen on {address} without authentication; set access.tokens to \"auto\""
        );
    }
    if tokens != TokenPolicy::Off && !valid_token {
        bail!(
            "refusing to listen on {address} without a valid token; create one with `llmprof token \
             create --role admin --name NAME --data {}`",
            config.server.data.display()
        );
    }
    Ok(())
}

/// Selects the devices with workers; none while the service is paused.
pub async fn devices(config: &Config, collector: &Collector) -> Result<Vec<Device>> {
    let configured = &config.worker.devices;
    if let Some(wrong) = configured.iter().find(|name| !is_device(name) || *name == "auto") {
        bail!(
            "setting worker.devices: invalid device {wrong:?}; expected cpu, cuda:INDEX or the \
             UUID of a GPU"
        );
    }
    if config.worker.paused {
        return Ok(Vec::new());
    }
    let chosen = collector.devices(configured).await;
    chosen.notes.iter().for_each(|note| tracing::warn!("{note}"));
    Ok(chosen.devices)
}

/// Creates the collector with the programs of the settings.
pub fn collector(tools: &ToolSettings, limits: &RunLimits) -> Result<Collector> {
    let ToolSettings { model_runner, nsys, ncu, devices: _, system_wide_sampling } = tools;
    for (setting, path) in
        [("tools.model_runner", model_runner), ("tools.nsys", nsys), ("tools.ncu", ncu)]
    {
        if given(path).is_some_and(|path| path != Path::new(OFF) && !is_program(path)) {
            bail!("setting {setting}: {} is not a program", path.display());
        }
    }
    let tool = |path| given(path).filter(|path| *path != Path::new(OFF));
    let mut found = Collector::find(given(model_runner), tool(nsys), tool(ncu));
    found.nsys = found.nsys.filter(|_| nsys != Path::new(OFF));
    found.ncu = found.ncu.filter(|_| ncu != Path::new(OFF));
    Ok(Collector {
        system_wide_sampling: *system_wide_sampling,
        log_cap: limits.log_bytes,
        host_busy_pct: limits.host_busy_pct,
        min_free_bytes: limits.free_bytes.max(limits.run_bytes),
        ..found
    })
}

/// Returns a path unless it is empty, as in the defaults.
pub fn given(path: &Path) -> Option<&Path> {
    Some(path).filter(|path| !path.as_os_str().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_runs() {
        let mut server = Config::default().server;
        server.connections = 2048;
        let [public, local] =
            ["192.0.2.1:80", "[::1]:80"].map(|address| address.parse::<SocketAddr>().unwrap());
        let total = |server: &config::ServerSettings, descriptors| {
            connection_limits(server, public, descriptors).total
        };
        assert_eq!(total(&server, Some(65_536)), 2048);
        assert_eq!((total(&server, Some(1024)), total(&server, Some(64))), (384, 16));
        assert!(connection_limits(&server, public, None).per_address.is_some());
        assert_eq!(connection_limits(&server, local, None).per_address, None);
        server.behind_proxy = true;
        assert_eq!(connection_limits(&server, public, None).per_address, None);
    }
}
