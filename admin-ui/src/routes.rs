//! The calls of `API.md` that are about the node and its data, and the table of all paths.
//!
//! Owns which right each call needs. Never holds data: everything comes from the backend. Read next:
//! `people.rs` for logins, users and rules.

use axum::Json;
use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::access::{Caller, check_host, peer_of};
use crate::backend::{Right, WhichBindings};
use crate::error::ApiError;
use crate::extract::{Asked, At, Given, InVhost};
use crate::model::{
    Binding, Connection, DeclareStream, Exchange, PeekedMessage, Publish, SeekTo, Stream,
};
use crate::{App, assets, delayed, history, metrics, people, policies, retained, seek};

/// Messages that one peek gives at most.
pub(crate) const PEEK_COUNT_LIMIT: usize = 100;
/// Bytes of each body that a peek gives.
pub(crate) const PEEK_BODY_LIMIT_BYTES: usize = 16 * 1024;
/// Bytes of a reason given to a client whose connection is closed.
const REASON_LIMIT_BYTES: usize = 200;

type Reply<T> = Result<T, ApiError>;

/// A list and when it was made.
#[derive(Serialize)]
pub(crate) struct List<T> {
    at_ms: u64,
    items: Vec<T>,
}

pub(crate) fn list<T>(app: &App, items: Vec<T>) -> Json<List<T>> {
    let at_ms = app.wall_ms();
    Json(List { at_ms, items })
}

/// Every path that is answered.
pub(crate) fn router(app: App) -> Router {
    let api = Router::new()
        .route("/login", post(people::login))
        .route("/logout", post(people::logout))
        .route("/whoami", get(people::whoami))
        .route("/overview", get(overview))
        .route("/history", get(points))
        .route("/connections", get(connections))
        .route("/connections/{id}", delete(close_connection))
        .route("/exchanges", get(exchanges).post(declare_exchange))
        .route("/exchanges/{vhost}/{name}", delete(delete_exchange))
        .route(
            "/exchanges/{vhost}/{name}/delayed",
            get(delayed::page).delete(delayed::clear),
        )
        .route("/bindings", get(bindings).post(bind).delete(unbind))
        .route("/streams", get(streams))
        .route(
            "/streams/{vhost}/{name}",
            get(stream).put(declare_stream).delete(delete_stream),
        )
        .route("/streams/{vhost}/{name}/purge", post(purge))
        .route("/streams/{vhost}/{name}/seek", post(seek::seek))
        .route("/streams/{vhost}/{name}/peek", get(peek))
        .route("/retained", get(retained::page).delete(retained::clear))
        .route("/policies", get(policies::policies))
        .route(
            "/policies/{vhost}/{name}",
            axum::routing::put(policies::put_policy).delete(policies::delete_policy),
        )
        .route("/publish", post(publish))
        .route("/users", get(people::users).post(people::create_user))
        .route(
            "/users/{name}",
            get(people::user)
                .put(people::change_user)
                .delete(people::delete_user),
        )
        .route("/rules", get(people::rules).post(people::create_rule))
        .route("/rules/explain", get(people::explain))
        .route(
            "/rules/{id}",
            axum::routing::put(people::replace_rule).delete(people::delete_rule),
        )
        .fallback(no_such_call)
        .method_not_allowed_fallback(no_such_method);
    let body_limit = DefaultBodyLimit::max(app.settings.body_limit_bytes);
    Router::new()
        .nest("/api/v1", api)
        .route("/metrics", get(metrics_text))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .fallback(file)
        .layer(body_limit)
        .layer(middleware::from_fn_with_state(app.clone(), check_host))
        .layer(middleware::map_response(finish))
        .with_state(app)
}

async fn finish(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in assets::SECURITY_HEADERS {
        headers.insert(name, value);
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

async fn no_such_call(request: Request) -> ApiError {
    ApiError::not_found(format!("there is no call {}", request.uri().path()))
}

async fn no_such_method(request: Request) -> Response {
    let error = ApiError::not_found(format!(
        "{} is not something this call does",
        request.method()
    ));
    (StatusCode::METHOD_NOT_ALLOWED, error).into_response()
}

async fn file(request: Request) -> Response {
    let path = request.uri().path();
    if path.starts_with("/api") || !matches!(*request.method(), Method::GET | Method::HEAD) {
        return ApiError::not_found(format!("there is nothing at {path}")).into_response();
    }
    assets::serve(path, request.headers())
}

async fn readyz(State(app): State<App>) -> Reply<&'static str> {
    app.backend.ready()?;
    Ok("ok\n")
}

async fn metrics_text(State(app): State<App>, request: Request) -> Reply<Response> {
    let (mut parts, _) = request.into_parts();
    // A proxy on this machine makes every client look local; it says so in a header.
    let forwarded = ["forwarded", "x-forwarded-for"]
        .iter()
        .any(|name| parts.headers.contains_key(*name));
    if forwarded || !peer_of(&parts)?.is_loopback() {
        let caller = Caller::from_request_parts(&mut parts, &app).await?;
        caller.need(&app, Right::Monitoring)?;
    }
    let text = metrics::render(app.backend.overview().await?)
        .map_err(|_| ApiError::bad_request("the metrics cannot be written"))?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

async fn overview(State(app): State<App>, _: Caller) -> Reply<Json<serde_json::Value>> {
    let overview = app.backend.overview().await?;
    let mut body = json!({"at_ms": app.wall_ms()});
    if let (Some(body), Ok(serde_json::Value::Object(fields))) =
        (body.as_object_mut(), serde_json::to_value(overview))
    {
        body.extend(fields);
    }
    Ok(Json(body))
}

async fn points(State(app): State<App>, _: Caller) -> Json<serde_json::Value> {
    Json(json!({"step_ms": history::STEP_MS, "points": app.history().points()}))
}

async fn connections(
    State(app): State<App>,
    caller: Caller,
    Asked(asked): Asked<InVhost>,
) -> Reply<Json<List<Connection>>> {
    let user = caller.identity.user.as_str();
    let own = (!app.backend.may(&caller.identity, Right::Monitoring)).then_some(user);
    let rows = app.backend.connections(asked.vhost.as_deref(), own).await?;
    Ok(list(&app, rows))
}

#[derive(Deserialize)]
pub(crate) struct Closing {
    reason: Option<String>,
}

async fn close_connection(
    State(app): State<App>,
    caller: Caller,
    At(id): At<String>,
    Asked(closing): Asked<Closing>,
) -> Reply<StatusCode> {
    caller.need(&app, Right::All)?;
    let reason = closing
        .reason
        .unwrap_or_else(|| "closed by an administrator".to_owned());
    if reason.len() > REASON_LIMIT_BYTES {
        return Err(ApiError::bad_request(format!(
            "the reason is longer than {REASON_LIMIT_BYTES} bytes"
        )));
    }
    app.backend
        .close_connection(&caller.identity, &id, &reason)
        .await?;
    app.note(&caller, "closed a connection", &format!("{id}: {reason}"));
    Ok(StatusCode::NO_CONTENT)
}

async fn exchanges(
    State(app): State<App>,
    _: Caller,
    Asked(asked): Asked<InVhost>,
) -> Reply<Json<List<Exchange>>> {
    let rows = app.backend.exchanges(asked.vhost.as_deref()).await?;
    Ok(list(&app, rows))
}

async fn declare_exchange(
    State(app): State<App>,
    caller: Caller,
    Given(exchange): Given<Exchange>,
) -> Reply<StatusCode> {
    caller.need(&app, Right::Management)?;
    let name = exchange.name.clone();
    app.backend
        .declare_exchange(&caller.identity, exchange)
        .await?;
    app.note(&caller, "declared an exchange", &name);
    Ok(StatusCode::CREATED)
}

/// Conditions of a delete.
#[derive(Deserialize)]
pub(crate) struct OnlyIf {
    #[serde(default)]
    if_unused: bool,
    #[serde(default)]
    if_empty: bool,
}

async fn delete_exchange(
    State(app): State<App>,
    caller: Caller,
    At((vhost, name)): At<(String, String)>,
    Asked(only): Asked<OnlyIf>,
) -> Reply<StatusCode> {
    caller.need(&app, Right::Management)?;
    app.backend
        .delete_exchange(&caller.identity, &vhost, &name, only.if_unused)
        .await?;
    app.note(&caller, "deleted an exchange", &name);
    Ok(StatusCode::NO_CONTENT)
}

/// Which bindings to list.
#[derive(Deserialize)]
pub(crate) struct Which {
    vhost: Option<String>,
    exchange: Option<String>,
    destination: Option<String>,
}

async fn bindings(
    State(app): State<App>,
    _: Caller,
    Asked(which): Asked<Which>,
) -> Reply<Json<List<Binding>>> {
    let which = WhichBindings {
        vhost: which.vhost.as_deref(),
        exchange: which.exchange.as_deref(),
        destination: which.destination.as_deref(),
    };
    let rows = app.backend.bindings(which).await?;
    Ok(list(&app, rows))
}

async fn bind(
    State(app): State<App>,
    caller: Caller,
    Given(binding): Given<Binding>,
) -> Reply<StatusCode> {
    caller.need(&app, Right::Management)?;
    let name = format!("{} -> {}", binding.exchange, binding.destination);
    app.backend.bind(&caller.identity, binding).await?;
    app.note(&caller, "bound", &name);
    Ok(StatusCode::CREATED)
}

async fn unbind(
    State(app): State<App>,
    caller: Caller,
    Given(binding): Given<Binding>,
) -> Reply<StatusCode> {
    caller.need(&app, Right::Management)?;
    let name = format!("{} -> {}", binding.exchange, binding.destination);
    app.backend.unbind(&caller.identity, binding).await?;
    app.note(&caller, "unbound", &name);
    Ok(StatusCode::NO_CONTENT)
}

async fn streams(
    State(app): State<App>,
    _: Caller,
    Asked(asked): Asked<InVhost>,
) -> Reply<Json<List<Stream>>> {
    let rows = app.backend.streams(asked.vhost.as_deref()).await?;
    Ok(list(&app, rows))
}

async fn stream(
    State(app): State<App>,
    _: Caller,
    At((vhost, name)): At<(String, String)>,
) -> Reply<Json<Stream>> {
    Ok(Json(app.backend.stream(&vhost, &name).await?))
}

async fn declare_stream(
    State(app): State<App>,
    caller: Caller,
    At((vhost, name)): At<(String, String)>,
    Given(declare): Given<DeclareStream>,
) -> Reply<StatusCode> {
    caller.need(&app, Right::Management)?;
    let created = app
        .backend
        .declare_stream(&caller.identity, &vhost, &name, declare)
        .await?;
    app.note(&caller, "declared a stream", &name);
    Ok(if created {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    })
}

async fn delete_stream(
    State(app): State<App>,
    caller: Caller,
    At((vhost, name)): At<(String, String)>,
    Asked(only): Asked<OnlyIf>,
) -> Reply<StatusCode> {
    caller.need(&app, Right::Management)?;
    app.backend
        .delete_stream(
            &caller.identity,
            &vhost,
            &name,
            only.if_empty,
            only.if_unused,
        )
        .await?;
    app.note(&caller, "deleted a stream", &name);
    Ok(StatusCode::NO_CONTENT)
}

async fn purge(
    State(app): State<App>,
    caller: Caller,
    At((vhost, name)): At<(String, String)>,
) -> Reply<Json<serde_json::Value>> {
    caller.need(&app, Right::Management)?;
    let purged = app.backend.purge(&caller.identity, &vhost, &name).await?;
    app.note(&caller, "purged a stream", &name);
    Ok(Json(json!({"purged": purged})))
}

/// Which messages to look at.
#[derive(Deserialize)]
pub(crate) struct Look {
    count: Option<usize>,
    offset: Option<u64>,
    since: Option<String>,
}

impl Look {
    fn from(&self) -> Result<SeekTo, ApiError> {
        match (self.offset, self.since.as_deref()) {
            (None, None) => Ok(SeekTo::Start),
            (Some(offset), None) => Ok(SeekTo::Offset(offset)),
            (None, Some(since)) => match since.parse() {
                Ok(ms) => Ok(SeekTo::TimeMs(ms)),
                Err(_) => seek::time_of(since),
            },
            (Some(_), Some(_)) => Err(ApiError::bad_request("one of offset and since is needed")),
        }
    }
}

async fn peek(
    State(app): State<App>,
    caller: Caller,
    At((vhost, name)): At<(String, String)>,
    Asked(look): Asked<Look>,
) -> Reply<Json<List<PeekedMessage>>> {
    let count = look.count.unwrap_or(10);
    if count == 0 || count > PEEK_COUNT_LIMIT {
        return Err(ApiError::bad_request(format!(
            "count must be 1 to {PEEK_COUNT_LIMIT}"
        )));
    }
    let rows = app
        .backend
        .peek(
            &caller.identity,
            &vhost,
            &name,
            look.from()?,
            count,
            PEEK_BODY_LIMIT_BYTES,
        )
        .await?;
    Ok(list(&app, rows))
}

async fn publish(
    State(app): State<App>,
    caller: Caller,
    Given(message): Given<Publish>,
) -> Reply<Json<serde_json::Value>> {
    let routed = app.backend.publish(&caller.identity, message).await?;
    Ok(Json(json!({"routed": routed})))
}
