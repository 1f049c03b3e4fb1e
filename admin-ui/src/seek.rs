//! The call of `API.md` that moves a queue's subscription.
//!
//! Owns: how a place in a queue is written. Never: finds the place.

use anabranch_core::date::unix_ms;
use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::App;
use crate::access::Caller;
use crate::backend::Right;
use crate::error::ApiError;
use crate::extract::{At, Given};
use crate::model::SeekTo;

/// Where to; one of the three.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Place {
    to: Option<End>,
    offset: Option<u64>,
    time: Option<Time>,
}

/// One end of a queue.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum End {
    Start,
    End,
}

/// A time, in milliseconds since 1970 or as text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Time {
    Ms(u64),
    Text(String),
}

pub(crate) async fn seek(
    State(app): State<App>,
    caller: Caller,
    At((vhost, name)): At<(String, String)>,
    Given(place): Given<Place>,
) -> Result<Json<Value>, ApiError> {
    caller.need(&app, Right::Management)?;
    let to = place.read()?;
    let left = app
        .backend
        .seek(&caller.identity, &vhost, &name, to)
        .await?;
    app.note(&caller, "moved a subscription", &format!("{name}: {to:?}"));
    Ok(Json(json!({"left": left})))
}

impl Place {
    fn read(self) -> Result<SeekTo, ApiError> {
        match (self.to, self.offset, self.time) {
            (Some(End::Start), None, None) => Ok(SeekTo::Start),
            (Some(End::End), None, None) => Ok(SeekTo::End),
            (None, Some(offset), None) => Ok(SeekTo::Offset(offset)),
            (None, None, Some(Time::Ms(time))) => Ok(SeekTo::TimeMs(time)),
            (None, None, Some(Time::Text(text))) => time_of(&text),
            _ => Err(ApiError::bad_request(
                "one of to (\"start\" or \"end\"), offset and time is needed",
            )),
        }
    }
}

/// A place by a time of RFC 3339.
pub(crate) fn time_of(text: &str) -> Result<SeekTo, ApiError> {
    let time = unix_ms(text).map(|time| SeekTo::TimeMs(time.0));
    time.ok_or_else(|| {
        ApiError::bad_request(format!(
            "time must be milliseconds or look like 2026-01-31T08:00:00Z, not {text:?}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_one_of_three() {
        let read = |text: &str| {
            let place: Place = serde_json::from_str(text).unwrap();
            place.read().ok()
        };
        assert_eq!(read(r#"{"to": "start"}"#), Some(SeekTo::Start));
        assert_eq!(read(r#"{"to": "end"}"#), Some(SeekTo::End));
        assert_eq!(read(r#"{"offset": 7}"#), Some(SeekTo::Offset(7)));
        assert_eq!(read(r#"{"time": 5}"#), Some(SeekTo::TimeMs(5)));
        let text = r#"{"time": "1970-01-01T00:00:01Z"}"#;
        assert_eq!(read(text), Some(SeekTo::TimeMs(1000)));
        for wrong in [r#"{}"#, r#"{"offset": 7, "time": 5}"#, r#"{"time": "now"}"#] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
