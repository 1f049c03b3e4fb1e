//! The calls of `API.md` about last values.
//!
//! Owns: their shape. Never: decides which values a caller may see or clear; the backend asks the rules.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::access::Caller;
use crate::backend::Right;
use crate::error::ApiError;
use crate::extract::Asked;
use crate::model::RetainedQuery;
use crate::routes::{PEEK_BODY_LIMIT_BYTES, PEEK_COUNT_LIMIT};

type Reply<T> = Result<T, ApiError>;

/// Which values to list.
#[derive(Deserialize)]
pub(crate) struct Which {
    #[serde(default = "first_vhost")]
    vhost: String,
    #[serde(default = "every_address")]
    filter: String,
    after: Option<String>,
    count: Option<usize>,
}

/// Which value to clear.
#[derive(Deserialize)]
pub(crate) struct One {
    #[serde(default = "first_vhost")]
    vhost: String,
    topic: String,
}

fn first_vhost() -> String {
    "/".to_owned()
}

fn every_address() -> String {
    "#".to_owned()
}

pub(crate) async fn page(
    State(app): State<App>,
    caller: Caller,
    Asked(which): Asked<Which>,
) -> Reply<Json<Value>> {
    caller.need(&app, Right::Management)?;
    let count = which.count.unwrap_or(PEEK_COUNT_LIMIT);
    if count == 0 || count > PEEK_COUNT_LIMIT {
        return Err(ApiError::bad_request(format!(
            "count must be 1 to {PEEK_COUNT_LIMIT}"
        )));
    }
    let query = RetainedQuery {
        vhost: which.vhost,
        filter: which.filter,
        after: which.after,
        count,
        body_limit_bytes: PEEK_BODY_LIMIT_BYTES,
    };
    let page = app.backend.retained(&caller.identity, query).await?;
    Ok(Json(
        json!({"at_ms": app.wall_ms(), "items": page.items, "next": page.next}),
    ))
}

pub(crate) async fn clear(
    State(app): State<App>,
    caller: Caller,
    Asked(one): Asked<One>,
) -> Reply<StatusCode> {
    caller.need(&app, Right::Management)?;
    app.backend
        .clear_retained(&caller.identity, &one.vhost, &one.topic)
        .await?;
    let what = format!("{} in {}", one.topic, one.vhost);
    app.note(&caller, "cleared a last value", &what);
    Ok(StatusCode::NO_CONTENT)
}
