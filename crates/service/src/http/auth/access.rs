//! Decisions about callers: tokens and roles, client addresses, origins, owners.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    extract::ConnectInfo,
    http::{Extensions, HeaderMap, HeaderName, HeaderValue, header},
};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::{
    rates::Rates,
    sessions::Sessions,
    upload_slots::{UploadSlot, UploadSlots},
};
use crate::{
    config::{AccessSettings, TokenPolicy},
    http::{
        error::{ApiError, ErrorCode},
        traffic::Traffic,
    },
    store::{
        Owner, Quota, Role, Store, Token,
        audit::{AuditEntry, AuditLog},
    },
};

/// Interval of the check for a first token.
const TOKEN_CHECK_MS: u64 = 1000;

/// The caller of a handler.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The token's name; `None` if no token is required.
    pub name: Option<String>,
    pub role: Role,
    pub address: Option<IpAddr>,
}

impl Caller {
    /// True for the owner, if it may submit, and for every admin.
    pub fn may_change(&self, owner: Option<&str>) -> bool {
        let is_owner = owner.is_some() && owner == self.name.as_deref();
        self.role == Role::Admin || (is_owner && self.role >= Role::Submitter)
    }
}

/// Settings and state of access control.
#[derive(Debug)]
pub struct AccessControl {
    settings: AccessSettings,
    /// Reached from other hosts.
    public: bool,
    /// Browsers send cookies over encrypted connections only.
    encrypted: bool,
    pub(super) behind_proxy: bool,
    sessions: Sessions,
    pub(super) rates: Rates,
    pub(super) handlers: Semaphore,
    uploads: Arc<UploadSlots>,
    pub traffic: Traffic,
    audit: Option<AuditLog>,
    /// Result and time of the last check for a token.
    has_tokens: tokio::sync::Mutex<(bool, Option<Instant>)>,
}

impl AccessControl {
    /// `public`: the service listens on an address that is not a loopback address.
    pub fn new(
        settings: &AccessSettings,
        public: bool,
        behind_proxy: bool,
        audit: Option<AuditLog>,
    ) -> Self {
        let traffic = Traffic::default();
        Self {
            public: public || behind_proxy,
            encrypted: public || behind_proxy,
            behind_proxy,
            sessions: Sessions::new(Duration::from_secs(settings.session_s.into())),
            rates: Rates::new(
                settings.requests_per_s_per_address,
                settings.requests_per_s_per_token,
                traffic.clone(),
            ),
            uploads: Arc::new(UploadSlots::new(
                settings.uploads,
                settings.uploads_per_owner,
                traffic.clone(),
            )),
            traffic,
            handlers: Semaphore::new(settings.concurrent_requests.max(1) as usize),
            audit,
            has_tokens: tokio::sync::Mutex::new((false, None)),
            settings: settings.clone(),
        }
    }

    /// The same for a service that speaks TLS if `encrypted`, also on a loopback address.
    pub fn with_tls(self, encrypted: bool) -> Self {
        Self { encrypted: self.encrypted || encrypted, ..self }
    }

    /// Returns true if requests need a token.
    pub async fn requires_token(&self, store: &Store) -> Result<bool, ApiError> {
        match self.settings.tokens {
            TokenPolicy::Off => return Ok(false),
            TokenPolicy::Required => return Ok(true),
            TokenPolicy::Auto if self.public => return Ok(true),
            TokenPolicy::Auto => {}
        }
        let mut checked = self.has_tokens.lock().await;
        let stale = checked.1.is_none_or(|at| at.elapsed().as_millis() as u64 >= TOKEN_CHECK_MS);
        if !checked.0 && stale {
            *checked = (store.has_tokens().await?, Some(Instant::now()));
        }
        Ok(checked.0)
    }

    /// The client's address: behind a proxy, the last that the proxy added.
    pub fn address(&self, extensions: &Extensions, headers: &HeaderMap) -> Option<IpAddr> {
        let peer = extensions
            .get::<ConnectInfo<SocketAddr>>()
            .map(|ConnectInfo(address)| address.ip().to_canonical());
        let forwarded = headers.get_all("x-forwarded-for").iter().next_back();
        let last = forwarded.and_then(|value| {
            value.to_str().ok()?.rsplit(',').next()?.trim().parse::<IpAddr>().ok()
        });
        if self.behind_proxy { last.or(peer) } else { peer }
    }

    /// Refuses a request that another site's page makes with the browser's own session.
    pub(super) fn check_origin(
        &self,
        headers: &HeaderMap,
        session: Option<&str>,
    ) -> Result<(), ApiError> {
        let text =
            |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        // Set by browsers; a page cannot change it.
        let site = text(HeaderName::from_static("sec-fetch-site"));
        let allowed = match text(header::ORIGIN) {
            None => !matches!(site, Some("cross-site" | "same-site")),
            Some(origin) => {
                let host = text(header::HOST).unwrap_or_default();
                let same = origin
                    .split_once("://")
                    .is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host));
                // Pages of a listed origin authenticate with a token that their script sends, never
                // with the browser's session.
                let listed = || self.settings.origins.iter().any(|known| known == origin);
                same || site == Some("same-origin")
                    || (listed() && (bearer(headers).is_some() || session.is_none()))
            }
        };
        if allowed { Ok(()) } else { Err(ApiError::of(ErrorCode::CrossOrigin)) }
    }

    /// The token with this secret.
    pub async fn token(&self, store: &Store, secret: &str) -> Result<Token, ApiError> {
        let token = store.token(&Sha256::digest(secret.as_bytes()).into()).await?;
        token.ok_or_else(|| {
            let message = "the token is unknown, has expired or was revoked";
            ApiError::new(ErrorCode::Unauthenticated, message)
        })
    }

    /// The token of a browser's session, which it extends.
    pub async fn session(&self, store: &Store, value: &str) -> Result<Token, ApiError> {
        let token = match self.sessions.token(value) {
            Some(hash) => store.token(&hash).await?,
            None => None,
        };
        token.ok_or_else(|| {
            let message = "the login session has ended, or its token has expired or was revoked";
            ApiError::new(ErrorCode::Unauthenticated, message)
        })
    }

    /// Logs in with a token from a form, within the rate of its address. Returns the value of the
    /// new session too.
    pub async fn log_in(
        &self,
        store: &Store,
        address: Option<IpAddr>,
        secret: &str,
    ) -> Result<(Caller, String), ApiError> {
        self.rates.take_address(address)?;
        let token = self.token(store, secret).await?;
        let session = self
            .sessions
            .start(Sha256::digest(secret.as_bytes()).into())
            .map_err(|error| ApiError::internal(&error))?;
        Ok((Caller { name: Some(token.name), role: token.role, address }, session))
    }

    /// Ends a browser's session.
    pub fn log_out(&self, session: &str) {
        self.sessions.end(session);
    }

    /// True if browsers must send cookies over encrypted connections only.
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    /// Origins of other sites whose pages may call the API.
    pub fn origins(&self) -> Vec<HeaderValue> {
        self.settings.origins.iter().filter_map(|origin| origin.parse().ok()).collect()
    }

    /// The owner of a run that `caller` submits.
    pub fn owner(&self, caller: &Caller) -> Option<Owner> {
        let quota = Quota {
            queued_runs: self.settings.queued_runs_per_owner,
            disk_bytes: self.settings.disk_bytes_per_owner,
        };
        caller.name.clone().map(|name| Owner { name, quota })
    }

    /// Takes a slot for an upload of `caller`.
    pub fn upload_slot(&self, caller: &Caller) -> Result<UploadSlot, ApiError> {
        self.uploads.take(caller)
    }

    /// The newest entries of the audit log; empty without a log.
    pub fn audit_entries(&self, count: usize) -> std::io::Result<Vec<AuditEntry>> {
        self.audit.as_ref().map_or_else(|| Ok(Vec::new()), |audit| audit.newest(count))
    }

    pub(super) fn record(&self, entry: &AuditEntry) {
        if let Some(Err(error)) = self.audit.as_ref().map(|audit| audit.add(entry)) {
            tracing::error!(%error, action = entry.action, "cannot write the audit log");
        }
    }
}

impl Default for AccessControl {
    /// Access control of a loopback address, without an audit log.
    fn default() -> Self {
        Self::new(&AccessSettings::default(), false, false, None)
    }
}

/// The token in the header `authorization`.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

/// Refuses a caller who is neither the owner of `thing` nor an admin.
pub fn check_owner(caller: &Caller, thing: &str, owner: Option<String>) -> Result<(), ApiError> {
    if caller.role == Role::Admin || (owner.is_some() && owner == caller.name) {
        return Ok(());
    }
    let owner = owner.map_or_else(|| "no owner".to_owned(), |owner| format!("the owner {owner:?}"));
    let message = format!("the {thing} has {owner}; only its owner or an admin may change it");
    Err(ApiError::new(ErrorCode::Forbidden, message))
}
