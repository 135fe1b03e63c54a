//! Connections: plain or TLS, HTTP/1.1 only, with a timeout on the head of a request.
//!
//! Certificates are reloaded while the service runs; an invalid one never replaces a valid one.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::http::{HeaderValue, header};
use axum_server::{Handle, Server, accept::DefaultAcceptor, tls_rustls::RustlsConfig};
use hyper_util::rt::TokioTimer;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower_http::set_header::SetResponseHeaderLayer;

use crate::http::{
    connection::{ConnectionLimits, Gate},
    router::router,
    state::App,
};

/// Maximum size of the head of a request.
const MAX_HEAD_BYTES: usize = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {path}")]
    Pem { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("{path} contains no certificate")]
    Empty { path: PathBuf },
    #[error("the certificate {certificate} does not match the key {key}")]
    Unfit { certificate: PathBuf, key: PathBuf, source: rustls::Error },
}

/// A certificate and its key, from files that may change.
#[derive(Debug, Clone)]
pub struct Certificate {
    chain: PathBuf,
    key: PathBuf,
    inner: RustlsConfig,
}

impl Certificate {
    /// Reads the PEM files of a chain and of its key.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, TlsError> {
        let inner = RustlsConfig::from_config(read(chain, key)?);
        Ok(Self { chain: chain.into(), key: key.into(), inner })
    }

    /// Reloads the files for new connections.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.inner.reload_from_config(read(&self.chain, &self.key)?);
        Ok(())
    }

    /// Modification times of both files.
    pub fn modified(&self) -> [Option<SystemTime>; 2] {
        [&self.chain, &self.key]
            .map(|path| std::fs::metadata(path).and_then(|file| file.modified()).ok())
    }
}

fn read(chain: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let pem = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::Pem { path, source }
    };
    let certificates = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(pem(chain))?;
    if certificates.is_empty() {
        return Err(TlsError::Empty { path: chain.into() });
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(pem(key))?;
    let unfit = |source| TlsError::Unfit { certificate: chain.into(), key: key.into(), source };
    let mut config =
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .with_no_client_auth()
            .with_single_cert(certificates, private)
            .map_err(unfit)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Serves until `closing` fires, then completes active requests. A request whose head does not
/// arrive within `head_timeout` is dropped.
pub fn serve(
    listener: TcpListener,
    certificate: Option<Certificate>,
    head_timeout: Duration,
    limits: ConnectionLimits,
    app: App,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let (handle, closing) = (Handle::new(), app.closing.clone());
    let traffic = app.access.traffic.clone();
    tokio::spawn(close(handle.clone(), closing));
    let mut routes = router(app);
    if certificate.is_some() {
        // Browsers use TLS only for a year after the first visit (RFC 6797).
        let year = HeaderValue::from_static("max-age=31536000");
        routes = routes
            .layer(SetResponseHeaderLayer::overriding(header::STRICT_TRANSPORT_SECURITY, year));
    }
    let service = routes.into_make_service_with_connect_info::<SocketAddr>();
    let server = axum_server::from_tcp(listener)?.handle(handle);
    Ok(match certificate {
        Some(certificate) => {
            let acceptor = axum_server::tls_rustls::RustlsAcceptor::new(certificate.inner)
                .handshake_timeout(head_timeout);
            let gate = Gate::new(acceptor, limits, traffic);
            tokio::spawn(bounded(server.acceptor(gate), head_timeout).serve(service))
        }
        None => {
            let gate = Gate::new(DefaultAcceptor, limits, traffic);
            tokio::spawn(bounded(server.acceptor(gate), head_timeout).serve(service))
        }
    })
}

/// Sets the version and the limits of heads, after the acceptor, which would reset the version: a
/// connection of any version waits for its first bytes without a timeout.
fn bounded<A>(server: Server<SocketAddr, A>, head_timeout: Duration) -> Server<SocketAddr, A> {
    let mut server = server.http1_only();
    server
        .http_builder()
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(MAX_HEAD_BYTES);
    server
}

async fn close(handle: Handle<SocketAddr>, closing: CancellationToken) {
    closing.cancelled().await;
    handle.graceful_shutdown(None);
}
