//! The calls of `API.md` about policies.
//!
//! Owns: their shape and which right each needs. Never: what a setting does.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;

use crate::App;
use crate::access::Caller;
use crate::backend::Right;
use crate::error::ApiError;
use crate::extract::{Asked, At, Given, InVhost};
use crate::model::{Policy, PolicySettings};
use crate::routes::{List, list};

type Reply<T> = Result<T, ApiError>;

/// A policy without what its path says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyBody {
    pattern: String,
    #[serde(default = "queues")]
    applies_to: String,
    #[serde(default)]
    priority: i64,
    #[serde(default)]
    settings: PolicySettings,
}

fn queues() -> String {
    "queues".to_owned()
}

pub(crate) async fn policies(
    State(app): State<App>,
    caller: Caller,
    Asked(within): Asked<InVhost>,
) -> Reply<Json<List<Policy>>> {
    caller.need(&app, Right::Management)?;
    let all = app.backend.policies(within.vhost.as_deref()).await?;
    Ok(list(&app, all))
}

pub(crate) async fn put_policy(
    State(app): State<App>,
    caller: Caller,
    At((vhost, name)): At<(String, String)>,
    Given(body): Given<PolicyBody>,
) -> Reply<StatusCode> {
    caller.need(&app, Right::Policy)?;
    let policy = Policy {
        vhost,
        name,
        pattern: body.pattern,
        applies_to: body.applies_to,
        priority: body.priority,
        settings: body.settings,
    };
    let said = serde_json::to_string(&policy).unwrap_or_else(|_| policy.name.clone());
    app.backend.put_policy(&caller.identity, policy).await?;
    app.note(&caller, "set a policy", &said);
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn delete_policy(
    State(app): State<App>,
    caller: Caller,
    At((vhost, name)): At<(String, String)>,
) -> Reply<StatusCode> {
    caller.need(&app, Right::Policy)?;
    app.backend
        .delete_policy(&caller.identity, &vhost, &name)
        .await?;
    app.note(&caller, "deleted a policy", &format!("{name} in {vhost}"));
    Ok(StatusCode::NO_CONTENT)
}
