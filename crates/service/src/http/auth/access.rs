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
/// Longest time for which a response is sent without a check of its caller.
const RECHECK: Duration = Duration::from_secs(5);

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

/// The identification that a request carries. Not printable: a session's value is secret.
#[derive(Clone)]
pub(super) enum Credential {
    None,
    /// Hash of a token.
    Token([u8; 32]),
    /// Value of a browser's session.
    Session(String),
}

impl Credential {
    /// The token in the request's headers, else the browser's `session`.
    pub(super) fn of(headers: &HeaderMap, session: Option<&str>) -> Self {
        match (bearer(headers), session) {
            (Some(secret), _) => Self::Token(hash(secret)),
            (None, Some(session)) => Self::Session(session.to_owned()),
            (None, None) => Self::None,
        }
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
    /// Longest time for which a response is sent without a check of its caller.
    pub(super) recheck: Duration,
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
            recheck: RECHECK,
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

    /// The same, with responses whose caller is checked again after `period`.
    pub fn with_recheck(self, period: Duration) -> Self {
        Self { recheck: period, ..self }
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

    /// The token of a request's credential; extends the session of a browser.
    pub(super) async fn token(
        &self,
        store: &Store,
        credential: &Credential,
    ) -> Result<Token, ApiError> {
        if let Credential::Session(value) = credential {
            self.sessions.extend(value);
        }
        self.valid_token(store, credential).await
    }

    /// Checks the caller of a response that is being sent. Only reads: extends no session, and
    /// records no use of a token.
    pub(super) async fn check_again(
        &self,
        store: &Store,
        credential: &Credential,
    ) -> Result<(), ApiError> {
        if !self.requires_token(store).await? {
            return Ok(());
        }
        let is_valid = match self.token_hash(credential) {
            Some(hash) => store.is_valid_token(&hash).await?,
            None => false,
        };
        if is_valid { Ok(()) } else { Err(not_valid(credential)) }
    }

    async fn valid_token(&self, store: &Store, credential: &Credential) -> Result<Token, ApiError> {
        let token = match self.token_hash(credential) {
            Some(hash) => store.token(&hash).await?,
            None => None,
        };
        token.ok_or_else(|| not_valid(credential))
    }

    /// Hash of the token that a request has, or its session; `None`: neither, or it has ended.
    fn token_hash(&self, credential: &Credential) -> Option<[u8; 32]> {
        match credential {
            Credential::None => None,
            Credential::Token(hash) => Some(*hash),
            Credential::Session(value) => self.sessions.token(value),
        }
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
        let hash = hash(secret);
        let token = self.valid_token(store, &Credential::Token(hash)).await?;
        let session = self.sessions.start(hash).map_err(|error| ApiError::internal(&error))?;
        Ok((Caller { name: Some(token.name), role: token.role, address }, session))
    }

    /// Returns true if a browser's session has not ended.
    pub async fn is_logged_in(&self, store: &Store, session: &str) -> bool {
        self.valid_token(store, &Credential::Session(session.to_owned())).await.is_ok()
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

/// The refusal of a credential without a valid token.
fn not_valid(credential: &Credential) -> ApiError {
    let message = match credential {
        Credential::None => return ApiError::of(ErrorCode::Unauthenticated),
        Credential::Token(_) => "the token is unknown, has expired or was revoked",
        Credential::Session(_) => {
            "the login session has ended, or its token has expired or was revoked"
        }
    };
    ApiError::new(ErrorCode::Unauthenticated, message)
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// The token in the header `authorization`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
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
