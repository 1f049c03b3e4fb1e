//! The calls of `API.md` about people: login and logout, users, rules, explain.
//!
//! Owns the limits on names and passwords. Never stores or logs a password.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::access::{COOKIE, Caller, by_password, need_own_header};
use crate::backend::{BackendError, Identity, Right};
use crate::error::ApiError;
use crate::extract::{Asked, At, Given};
use crate::model::{Explanation, NewUser, Question, Rule, User, UserChange};
use crate::routes::{List, list};

/// Bytes of a user's, role's or group's name.
const NAME_LIMIT_BYTES: usize = 128;
/// Fewest bytes of a password that is set here.
const PASSWORD_LEAST_BYTES: usize = 8;
/// Most bytes of a password that is set here.
const PASSWORD_LIMIT_BYTES: usize = 1024;
/// Roles or groups of one user.
const NAMES_LIMIT: usize = 64;

type Reply<T> = Result<T, ApiError>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Login {
    user: String,
    password: String,
    #[serde(default)]
    token: bool,
}

/// The peer of a request that carries no credentials yet.
pub(crate) struct Peer(std::net::IpAddr);

impl axum::extract::FromRequestParts<App> for Peer {
    type Rejection = ApiError;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        _: &App,
    ) -> Result<Self, ApiError> {
        crate::access::peer_of(parts).map(Peer)
    }
}

pub(crate) async fn login(
    State(app): State<App>,
    Peer(peer): Peer,
    headers: HeaderMap,
    Given(login): Given<Login>,
) -> Reply<Response> {
    // A token goes to whoever asked; only a cookie would be kept by a browser for another site's page.
    if !login.token {
        need_own_header(&Method::POST, &headers)?;
    }
    let identity = by_password(&app, &login.user, &login.password, peer).await?;
    if !app.backend.may(&identity, Right::Management) {
        return Err(ApiError::forbidden(format!(
            "{} may not use the console: it needs {}",
            identity.user,
            Right::Management.action()
        )));
    }
    let secret = new_secret();
    let now_ms = app.steady_ms();
    app.sessions().open(
        secret.clone(),
        identity.user.clone(),
        identity.credential_version,
        now_ms,
    );
    tracing::info!(%peer, user = identity.user, "signed in to the console");
    let mut body = who(&app, &identity).await?;
    if login.token {
        if let Some(fields) = body.as_object_mut() {
            fields.insert("token".to_owned(), Value::String(secret));
        }
        return Ok(Json(body).into_response());
    }
    let mut response = Json(body).into_response();
    set_cookie(&mut response, &secret, None);
    Ok(response)
}

pub(crate) async fn logout(State(app): State<App>, caller: Caller) -> Response {
    if let Some(secret) = &caller.secret {
        app.sessions().close(secret);
    }
    let mut response = StatusCode::NO_CONTENT.into_response();
    set_cookie(&mut response, "", Some(0));
    response
}

fn set_cookie(response: &mut Response, secret: &str, max_age_s: Option<u64>) {
    let age = max_age_s.map_or(String::new(), |seconds| format!("; Max-Age={seconds}"));
    let text = format!("{COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict{age}");
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
}

fn new_secret() -> String {
    let bytes: [u8; 32] = rand::random();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn who(app: &App, identity: &Identity) -> Reply<Value> {
    let about = app.backend.about().await?;
    let rights: Vec<Right> = Right::EACH
        .into_iter()
        .filter(|right| app.backend.may(identity, *right))
        .collect();
    Ok(json!({
        "user": identity.user,
        "roles": identity.roles,
        "rights": rights,
        "node": about.node,
        "version": about.version,
        "vhosts": about.vhosts,
    }))
}

pub(crate) async fn whoami(State(app): State<App>, caller: Caller) -> Reply<Json<Value>> {
    Ok(Json(who(&app, &caller.identity).await?))
}

pub(crate) async fn users(State(app): State<App>, caller: Caller) -> Reply<Json<List<User>>> {
    caller.need(&app, Right::All)?;
    Ok(list(&app, app.backend.users().await?))
}

pub(crate) async fn user(
    State(app): State<App>,
    caller: Caller,
    At(name): At<String>,
) -> Reply<Json<User>> {
    caller.need(&app, Right::All)?;
    let all = app.backend.users().await?;
    all.into_iter()
        .find(|user| user.name == name)
        .map(Json)
        .ok_or_else(|| BackendError::NotFound(format!("there is no user {name:?}")).into())
}

pub(crate) async fn create_user(
    State(app): State<App>,
    caller: Caller,
    Given(user): Given<NewUser>,
) -> Reply<StatusCode> {
    caller.need(&app, Right::All)?;
    check_name("the user's name", &user.name)?;
    check_password(&user.password)?;
    check_names("role", &user.roles)?;
    check_names("group", &user.groups)?;
    let name = user.name.clone();
    app.backend.create_user(&caller.identity, user).await?;
    app.note(&caller, "created a user", &name);
    Ok(StatusCode::CREATED)
}

pub(crate) async fn change_user(
    State(app): State<App>,
    caller: Caller,
    At(name): At<String>,
    Given(change): Given<UserChange>,
) -> Reply<StatusCode> {
    let own_password =
        name == caller.identity.user && change.roles.is_none() && change.groups.is_none();
    if !own_password {
        caller.need(&app, Right::All)?;
    }
    if let Some(password) = &change.password {
        check_password(password)?;
    }
    check_names("role", change.roles.as_deref().unwrap_or_default())?;
    check_names("group", change.groups.as_deref().unwrap_or_default())?;
    app.backend
        .change_user(&caller.identity, &name, change)
        .await?;
    app.note(&caller, "changed a user", &name);
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn delete_user(
    State(app): State<App>,
    caller: Caller,
    At(name): At<String>,
) -> Reply<StatusCode> {
    caller.need(&app, Right::All)?;
    if name == caller.identity.user {
        return Err(BackendError::Conflict(
            "you cannot delete yourself: let another administrator do it".to_owned(),
        )
        .into());
    }
    app.backend.delete_user(&caller.identity, &name).await?;
    app.note(&caller, "deleted a user", &name);
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn rules(State(app): State<App>, caller: Caller) -> Reply<Json<List<Rule>>> {
    caller.need(&app, Right::All)?;
    Ok(list(&app, app.backend.rules().await?))
}

pub(crate) async fn create_rule(
    State(app): State<App>,
    caller: Caller,
    Given(rule): Given<Rule>,
) -> Reply<(StatusCode, Json<Rule>)> {
    caller.need(&app, Right::All)?;
    let rule = app.backend.create_rule(&caller.identity, rule).await?;
    app.note(&caller, "created a rule", &said(&rule));
    Ok((StatusCode::CREATED, Json(rule)))
}

pub(crate) async fn replace_rule(
    State(app): State<App>,
    caller: Caller,
    At(id): At<String>,
    Given(rule): Given<Rule>,
) -> Reply<Json<Rule>> {
    caller.need(&app, Right::All)?;
    let rule = app
        .backend
        .replace_rule(&caller.identity, &id, rule)
        .await?;
    app.note(&caller, "changed a rule", &said(&rule));
    Ok(Json(rule))
}

pub(crate) async fn delete_rule(
    State(app): State<App>,
    caller: Caller,
    At(id): At<String>,
) -> Reply<StatusCode> {
    caller.need(&app, Right::All)?;
    let rules = app.backend.rules().await?;
    app.backend.delete_rule(&caller.identity, &id).await?;
    let gone = rules.iter().find(|rule| rule.id == id);
    app.note(&caller, "deleted a rule", &gone.map_or(id.clone(), said));
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn explain(
    State(app): State<App>,
    caller: Caller,
    Asked(question): Asked<Question>,
) -> Reply<Json<Explanation>> {
    caller.need(&app, Right::All)?;
    Ok(Json(app.backend.explain(question).await?))
}

/// A rule for the log, whole: what was in force once can be read there after it is gone.
fn said(rule: &Rule) -> String {
    serde_json::to_string(rule).unwrap_or_else(|_| rule.id.clone())
}

fn check_name(what: &str, name: &str) -> Reply<()> {
    if name.is_empty() || name.len() > NAME_LIMIT_BYTES || name.chars().any(char::is_control) {
        return Err(ApiError::bad_request(format!(
            "{what} must have 1 to {NAME_LIMIT_BYTES} bytes and no control characters"
        )));
    }
    Ok(())
}

fn check_names(what: &str, names: &[String]) -> Reply<()> {
    if names.len() > NAMES_LIMIT {
        return Err(ApiError::bad_request(format!(
            "a user can have {NAMES_LIMIT} {what}s at most"
        )));
    }
    names
        .iter()
        .try_for_each(|name| check_name(&format!("a {what}'s name"), name))
}

fn check_password(password: &str) -> Reply<()> {
    if (PASSWORD_LEAST_BYTES..=PASSWORD_LIMIT_BYTES).contains(&password.len()) {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "a password must have {PASSWORD_LEAST_BYTES} to {PASSWORD_LIMIT_BYTES} bytes"
    )))
}
