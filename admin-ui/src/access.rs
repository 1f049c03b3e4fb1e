//! Who is asking: session cookie, bearer token or Basic password, and what keeps other sites out.
//!
//! Owns the checks of `API.md`, section "Who is asking". Never decides about data. Read next:
//! `routes.rs`.

use std::net::IpAddr;

use axum::extract::{ConnectInfo, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::App;
use crate::backend::{Identity, Right};
use crate::error::ApiError;
use crate::listener::PeerAddress;
use crate::session::SECRET_CHARS;

/// Name of the session cookie.
pub(crate) const COOKIE: &str = "anabranch_session";
/// Header that no other site's page can send without being asked first.
pub(crate) const OWN_HEADER: HeaderName = HeaderName::from_static("x-anabranch");

/// Whoever sent the request, known and allowed to look at the console.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    pub(crate) peer: IpAddr,
    /// The session's or token's secret; none with Basic.
    pub(crate) secret: Option<String>,
}

impl Caller {
    /// # Errors
    /// 403 when the caller lacks the right.
    pub(crate) fn need(&self, app: &App, right: Right) -> Result<(), ApiError> {
        if app.backend.may(&self.identity, right) {
            return Ok(());
        }
        Err(ApiError::forbidden(format!(
            "{} may not do this: it needs {}",
            self.identity.user,
            right.action()
        )))
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let peer = peer_of(parts)?;
        let (identity, secret) = match credentials(&parts.headers)? {
            Credentials::Bearer(secret) => (by_secret(app, &secret).await?, Some(secret)),
            Credentials::Cookie(secret) => {
                need_own_header(&parts.method, &parts.headers)?;
                (by_secret(app, &secret).await?, Some(secret))
            }
            Credentials::Basic(user, password) => {
                need_own_header(&parts.method, &parts.headers)?;
                (by_password(app, &user, &password, peer).await?, None)
            }
        };
        let caller = Caller {
            identity,
            peer,
            secret,
        };
        caller.need(app, Right::Management)?;
        Ok(caller)
    }
}

enum Credentials {
    Bearer(String),
    Basic(String, String),
    Cookie(String),
}

fn credentials(headers: &HeaderMap) -> Result<Credentials, ApiError> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let unreadable = || ApiError::unauthenticated("the authorization header cannot be read");
        let value = value.to_str().map_err(|_| unreadable())?;
        let (scheme, rest) = value.split_once(' ').ok_or_else(unreadable)?;
        let rest = rest.trim();
        if scheme.eq_ignore_ascii_case("bearer") {
            return Ok(Credentials::Bearer(rest.to_owned()));
        }
        if scheme.eq_ignore_ascii_case("basic") {
            let bytes = STANDARD.decode(rest).map_err(|_| unreadable())?;
            let text = String::from_utf8(bytes).map_err(|_| unreadable())?;
            let (user, password) = text.split_once(':').ok_or_else(unreadable)?;
            return Ok(Credentials::Basic(user.to_owned(), password.to_owned()));
        }
        return Err(unreadable());
    }
    cookie(headers).map_or_else(
        || Err(ApiError::unauthenticated("sign in first")),
        |secret| Ok(Credentials::Cookie(secret)),
    )
}

/// The session's secret in the cookies, when there is one.
pub(crate) fn cookie(headers: &HeaderMap) -> Option<String> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, secret)| *name == COOKIE && secret.len() == SECRET_CHARS)
        .map(|(_, secret)| secret.to_owned())
}

/// # Errors
/// 403 `csrf` when something is to be changed and the own header is missing.
pub(crate) fn need_own_header(method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    if method.is_safe() || headers.get(OWN_HEADER).is_some_and(|value| value == "1") {
        return Ok(());
    }
    Err(ApiError::csrf())
}

async fn by_secret(app: &App, secret: &str) -> Result<Identity, ApiError> {
    let ended = || ApiError::unauthenticated("the session has ended; sign in again");
    let now_ms = app.steady_ms();
    let (user, version) = app.sessions().user(secret, now_ms).ok_or_else(ended)?;
    match app.backend.identity(&user).await? {
        Some(identity) if identity.credential_version == version => Ok(identity),
        _ => {
            app.sessions().close(secret);
            Err(ended())
        }
    }
}

/// Checks a password within the limit on attempts.
///
/// # Errors
/// 429 when there were too many, 401 when it is wrong.
pub(crate) async fn by_password(
    app: &App,
    user: &str,
    password: &str,
    peer: IpAddr,
) -> Result<Identity, ApiError> {
    let mut attempt = Attempt::begin(app, peer)?;
    match app.backend.login(user, password, peer).await {
        Ok(Some(identity)) => {
            attempt.failed = false;
            Ok(identity)
        }
        Ok(None) => {
            tracing::warn!(%peer, user, "login to the console refused");
            Err(ApiError::unauthenticated("unknown user or wrong password"))
        }
        Err(error) => {
            attempt.failed = false;
            Err(error.into())
        }
    }
}

/// A login under way. Ends when dropped, as failed unless it is said otherwise: so also when the client
/// goes away before it has its answer.
struct Attempt<'a> {
    app: &'a App,
    peer: IpAddr,
    failed: bool,
}

impl<'a> Attempt<'a> {
    fn begin(app: &'a App, peer: IpAddr) -> Result<Self, ApiError> {
        let now_ms = app.steady_ms();
        app.attempts()
            .begin(peer, now_ms)
            .map_err(|wait_ms| ApiError::too_many_attempts(wait_ms.div_ceil(1000)))?;
        Ok(Attempt {
            app,
            peer,
            failed: true,
        })
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.app.attempts().end(self.peer, self.failed);
    }
}

/// The address of the other side.
///
/// # Errors
/// 401 when the router was not served with connection information.
pub(crate) fn peer_of(parts: &Parts) -> Result<IpAddr, ApiError> {
    parts
        .extensions
        .get::<ConnectInfo<PeerAddress>>()
        .map(|info| info.0.0.ip().to_canonical())
        .ok_or_else(|| ApiError::unauthenticated("the client's address is unknown"))
}

/// Refuses requests whose Host is not this console's, so that a page of another site that points its
/// own name at this address cannot talk to it.
pub(crate) async fn check_host(State(app): State<App>, request: Request, next: Next) -> Response {
    if app.settings.check_host {
        let host = request
            .headers()
            .get(header::HOST)
            .and_then(|value| value.to_str().ok())
            .or_else(|| {
                request
                    .uri()
                    .authority()
                    .map(|authority| authority.as_str())
            })
            .unwrap_or("");
        if !host_allowed(host, &app.settings.allowed_hosts) {
            return ApiError::host(host).into_response();
        }
    }
    next.run(request).await
}

fn host_allowed(host: &str, allowed: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || allowed.iter().any(|entry| entry.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_allowed_names_are_hosts_of_the_console() {
        let allowed = vec!["console.example".to_owned()];
        for host in [
            "127.0.0.1:15672",
            "[::1]:15672",
            "LOCALHOST",
            "localhost:1",
            "console.example:80",
        ] {
            assert!(host_allowed(host, &allowed), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:15672",
            "",
            "127.0.0.1.evil.example",
        ] {
            assert!(!host_allowed(host, &allowed), "{host}");
        }
    }

    #[test]
    fn the_session_cookie_is_found_among_others_and_only_at_its_full_length() {
        let secret = "a".repeat(SECRET_CHARS);
        let mut headers = HeaderMap::new();
        headers.insert(
            header::COOKIE,
            format!("x=1; {COOKIE}={secret}").parse().unwrap(),
        );
        assert_eq!(cookie(&headers), Some(secret));
        headers.insert(header::COOKIE, format!("{COOKIE}=short").parse().unwrap());
        assert_eq!(cookie(&headers), None);
    }
}
