//! The calls of `API.md` about messages that wait until they are due.
//!
//! Owns: their shape. Never: decides who may see or drop them; the backend asks the rules.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::access::Caller;
use crate::backend::Right;
use crate::error::ApiError;
use crate::extract::{Asked, At};
use crate::model::DelayedQuery;
use crate::routes::{PEEK_BODY_LIMIT_BYTES, PEEK_COUNT_LIMIT};

type Reply<T> = Result<T, ApiError>;

/// How many to list.
#[derive(Deserialize)]
pub(crate) struct Which {
    count: Option<usize>,
}

pub(crate) async fn page(
    State(app): State<App>,
    caller: Caller,
    At((vhost, name)): At<(String, String)>,
    Asked(which): Asked<Which>,
) -> Reply<Json<Value>> {
    caller.need(&app, Right::Management)?;
    let count = which.count.unwrap_or(PEEK_COUNT_LIMIT);
    if count == 0 || count > PEEK_COUNT_LIMIT {
        return Err(ApiError::bad_request(format!(
            "count must be 1 to {PEEK_COUNT_LIMIT}"
        )));
    }
    let query = DelayedQuery {
        count,
        body_limit_bytes: PEEK_BODY_LIMIT_BYTES,
    };
    let items = app
        .backend
        .delayed(&caller.identity, &vhost, &name, query)
        .await?;
    Ok(Json(json!({"at_ms": app.wall_ms(), "items": items})))
}

pub(crate) async fn clear(
    State(app): State<App>,
    caller: Caller,
    At((vhost, name)): At<(String, String)>,
) -> Reply<Json<Value>> {
    caller.need(&app, Right::Management)?;
    let dropped = app
        .backend
        .drop_delayed(&caller.identity, &vhost, &name)
        .await?;
    app.note(&caller, "dropped delayed messages", &name);
    Ok(Json(json!({"dropped": dropped})))
}
