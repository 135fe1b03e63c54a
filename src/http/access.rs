//! Who may ask for what: tokens and roles, names of the service, rates, other sites' pages, and the line in the audit log.
//!
//! Every request passes here before its handler, and a handler learns who asks from [`Caller`]. What an operation needs is told by
//! [`needs`] alone, from which the contract is written, too.

use std::{
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use axum::{
    extract::{ConnectInfo, MatchedPath, Request, State},
    http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header},
    middleware::Next,
    response::Response,
};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::{
    App,
    error::{ApiError, ErrorCode},
    hosts,
    metrics::Metrics,
    page,
    rates::Rates,
    request,
};
use crate::{
    config::{self, Asked},
    run::RunId,
    store::{
        Owner, Quota, Role, Store, Token,
        audit::{AuditEntry, AuditLog},
    },
};

/// How often it is looked whether a first token was made.
const LOOK_MS: u64 = 1000;

/// What the handlers know of whoever asks.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The token's name; `None`: no token was asked for.
    pub name: Option<String>,
    pub role: Role,
}

/// What the service asks of a request, and what it keeps to decide.
#[derive(Debug)]
pub struct Access {
    settings: config::Access,
    /// Others than the host itself reach it.
    public: bool,
    behind_proxy: bool,
    rates: Rates,
    handlers: Semaphore,
    audit: Option<AuditLog>,
    pub(super) metrics: Metrics,
    looked: tokio::sync::Mutex<(bool, Option<Instant>)>,
}

impl Access {
    /// `public`: the address that is served on is no loopback address.
    pub fn new(settings: &config::Access, public: bool, behind_proxy: bool, audit: Option<AuditLog>) -> Self {
        Self {
            public: public || behind_proxy,
            behind_proxy,
            rates: Rates::new(settings.requests_per_s_per_address, settings.requests_per_s_per_token),
            handlers: Semaphore::new(settings.concurrent_requests.max(1) as usize),
            audit,
            metrics: Metrics::new(),
            looked: tokio::sync::Mutex::new((false, None)),
            settings: settings.clone(),
        }
    }

    /// Says whether a token must be shown.
    pub(super) async fn required(&self, store: &Store) -> Result<bool, ApiError> {
        match self.settings.tokens {
            Asked::Off => return Ok(false),
            Asked::Required => return Ok(true),
            Asked::Auto if self.public => return Ok(true),
            Asked::Auto => {}
        }
        let mut looked = self.looked.lock().await;
        let stale = looked.1.is_none_or(|at| at.elapsed().as_millis() as u64 >= LOOK_MS);
        if !looked.0 && stale {
            *looked = (store.has_tokens().await?, Some(Instant::now()));
        }
        Ok(looked.0)
    }

    /// Where a request comes from: behind a proxy, what the proxy added last.
    pub(super) fn address(&self, extensions: &Extensions, headers: &HeaderMap) -> Option<IpAddr> {
        let peer = extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip().to_canonical());
        let forwarded = headers.get_all("x-forwarded-for").iter().next_back();
        let last = forwarded.and_then(|value| value.to_str().ok()?.rsplit(',').next()?.trim().parse::<IpAddr>().ok());
        if self.behind_proxy { last.or(peer) } else { peer }
    }

    /// Refuses what a page of another site sends in the name of whoever looks at it.
    fn same_origin(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        // Browsers say so themselves, and no page can change it.
        let site = text(HeaderName::from_static("sec-fetch-site"));
        let fine = match text(header::ORIGIN) {
            None => !matches!(site, Some("cross-site" | "same-site")),
            Some(origin) => {
                let host = text(header::HOST).unwrap_or_default();
                let own = origin.split_once("://").is_some_and(|(_, authority)| authority.eq_ignore_ascii_case(host));
                // A listed site's page acts with a token that its script shows, never with one that the browser keeps for ours.
                let listed = || self.settings.origins.iter().any(|known| known == origin);
                own || site == Some("same-origin") || (listed() && (bearer(headers).is_some() || cookie(headers).is_none()))
            }
        };
        if fine { Ok(()) } else { Err(ApiError::new(ErrorCode::CrossOrigin, ErrorCode::CrossOrigin.example())) }
    }

    /// Whose token this text is.
    async fn owner_of(&self, store: &Store, shown: &str) -> Result<Token, ApiError> {
        let token = store.token(&Sha256::digest(shown.as_bytes()).into()).await?;
        token.ok_or_else(|| ApiError::new(ErrorCode::Unauthenticated, "the token is unknown, has expired or was revoked"))
    }

    /// Looks a token up that somebody entered into a form, at most so often from one address.
    pub(super) async fn enter(&self, store: &Store, address: Option<IpAddr>, shown: &str) -> Result<Caller, ApiError> {
        self.rates.address(address)?;
        let token = self.owner_of(store, shown).await?;
        Ok(Caller { name: Some(token.name), role: token.role })
    }

    /// Who asks by the token that a browser keeps, if it still opens the service.
    pub(super) async fn kept(&self, store: &Store, headers: &HeaderMap) -> Option<Token> {
        self.owner_of(store, cookie(headers)?).await.ok()
    }

    /// Whether a browser may keep a token for encrypted connections alone.
    pub(super) fn encrypted(&self) -> bool {
        self.public
    }

    /// Finds out who asks, and whether they may. `who` is told even of those who are refused.
    async fn admit(
        &self,
        app: &App,
        (method, uri, headers): (&Method, &Uri, &HeaderMap),
        address: Option<IpAddr>,
        who: &mut Option<String>,
    ) -> Result<Caller, ApiError> {
        if !method.is_safe() {
            self.same_origin(headers)?;
        }
        let Some(needed) = needs(method, uri.path()) else {
            return Ok(Caller { name: None, role: Role::Viewer });
        };
        let (store, hosts) = (&app.store, &app.config.server.hosts);
        let required = self.required(store).await?;
        // A token is the page's of the host that it was entered at, and what a proxy lets through was asked for by a name of its own.
        if !hosts.is_empty() || !(required || self.behind_proxy) {
            hosts::check(uri, headers, hosts)?;
        }
        if !required {
            return Ok(Caller { name: None, role: Role::Admin });
        }
        self.rates.address(address)?;
        let shown = bearer(headers).or_else(|| cookie(headers));
        let refuse = || ApiError::new(ErrorCode::Unauthenticated, ErrorCode::Unauthenticated.example());
        let token = self.owner_of(store, shown.ok_or_else(refuse)?).await?;
        *who = Some(token.name.clone());
        self.rates.token(token.id)?;
        if token.role < needed {
            let message = format!("this needs the role {needed}, and the token {:?} has the role {}", token.name, token.role);
            return Err(ApiError::new(ErrorCode::Forbidden, message));
        }
        Ok(Caller { name: Some(token.name), role: token.role })
    }

    /// Other sites whose pages may use the API.
    pub(super) fn origins(&self) -> Vec<HeaderValue> {
        self.settings.origins.iter().filter_map(|origin| origin.parse().ok()).collect()
    }

    /// Whose a run is that `caller` submits.
    pub(super) fn owner(&self, caller: &Caller) -> Option<Owner> {
        let quota = Quota { queued_runs: self.settings.queued_runs_per_owner, disk_bytes: self.settings.disk_bytes_per_owner };
        caller.name.clone().map(|name| Owner { name, quota })
    }

    /// The newest lines of the audit log; none where none is kept.
    pub(super) fn newest(&self, count: usize) -> std::io::Result<Vec<AuditEntry>> {
        self.audit.as_ref().map_or_else(|| Ok(Vec::new()), |audit| audit.newest(count))
    }

    fn note(&self, entry: &AuditEntry) {
        if let Some(Err(error)) = self.audit.as_ref().map(|audit| audit.add(entry)) {
            tracing::error!(%error, action = entry.action, "the audit log cannot be written");
        }
    }
}

impl Default for Access {
    /// As bound to loopback, without an audit log.
    fn default() -> Self {
        Self::new(&config::Access::default(), false, false, None)
    }
}

/// The role that an operation needs; `None`: everybody may. Paths of the contract and of requests are taken alike.
pub(super) fn needs(method: &Method, path: &str) -> Option<Role> {
    match path {
        "/healthz" | "/readyz" | "/openapi.json" | "/openapi.yaml" | "/docs" => None,
        page::LOGIN | page::LOGOUT => None,
        path if path.starts_with("/docs/") || path.starts_with(page::ASSETS) => None,
        "/audit" => Some(Role::Admin),
        _ if method.is_safe() => Some(Role::Viewer),
        _ => Some(Role::Submitter),
    }
}

/// The token that a request shows.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

/// The token that a browser keeps since somebody entered it at the service's own page.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, token)| *name == page::COOKIE && !token.is_empty()).map(|(_, token)| token)
}

/// Lets a request through to its handler or answers it here, and keeps what both took and came to.
pub(super) async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let (start, access) = (Instant::now(), &app.access);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let address = access.address(request.extensions(), request.headers());
    let open = needs(&method, &path).is_none();
    let noted = !open || path == page::LOGIN;
    let mut who = None;
    let admitted = access.admit(&app, (&method, request.uri(), request.headers()), address, &mut who).await;
    let response = match (admitted, access.handlers.try_acquire()) {
        (Err(refused), _) => page::refuse(request.uri(), request.headers(), refused),
        (Ok(_), Err(_)) if !open => {
            let refused = ApiError::new(ErrorCode::Overloaded, ErrorCode::Overloaded.example()).retry_after(1);
            page::refuse(request.uri(), request.headers(), refused)
        }
        (Ok(caller), _permit) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
    };
    let status = response.status();
    // Who logged in is known only now.
    let who = who.or_else(|| response.extensions().get::<Caller>().and_then(|caller| caller.name.clone()));
    if noted && (!method.is_safe() || matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)) {
        access.note(&AuditEntry {
            who,
            address: address.map(|address| address.to_string()),
            status: Some(status.as_u16()),
            request_id: Some(request::id()),
            ..AuditEntry::on_host(&format!("{method} {}", route.as_deref().unwrap_or("-")), &path)
        });
    }
    access.metrics.answered(&method, route.as_deref(), status, start.elapsed());
    response
}

/// Refuses who neither owns the run nor is an admin.
pub(super) async fn own(app: &App, caller: &Caller, id: RunId) -> Result<(), ApiError> {
    if caller.role == Role::Admin {
        return Ok(());
    }
    owned(caller, "run", app.store.owner(id).await?.ok_or_else(|| super::runs::unknown(id))?)
}

/// Refuses who is neither the owner of a thing nor an admin.
pub(super) fn owned(caller: &Caller, thing: &str, owner: Option<String>) -> Result<(), ApiError> {
    if caller.role == Role::Admin {
        return Ok(());
    }
    if owner.is_some() && owner == caller.name {
        return Ok(());
    }
    let owner = owner.map_or_else(|| "nobody".to_owned(), |owner| format!("{owner:?}"));
    Err(ApiError::new(ErrorCode::Forbidden, format!("the {thing} belongs to {owner}: its owner or an admin may do this")))
}
