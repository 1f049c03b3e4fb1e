//! Reads paths, queries and bodies, and answers what cannot be read in the API's own words.
//!
//! Owns nothing else. Read next: `routes.rs`.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::App;
use crate::error::ApiError;

/// Parts of the path.
pub(crate) struct At<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for At<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let Path(value) = Path::<T>::from_request_parts(parts, app).await?;
        Ok(At(value))
    }
}

/// The query string.
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let Query(value) = Query::<T>::from_request_parts(parts, app).await?;
        Ok(Asked(value))
    }
}

/// `?vhost=`, which every list takes.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct InVhost {
    pub(crate) vhost: Option<String>,
}

/// A JSON body.
pub(crate) struct Given<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Given<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let json = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.trim().starts_with("application/json"));
        if !json {
            return Err(ApiError::bad_request(
                "the body must be JSON, with content-type: application/json",
            ));
        }
        let bytes = Bytes::from_request(request, app)
            .await
            .map_err(|rejection| match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => ApiError::too_large(app.settings.body_limit_bytes),
                _ => ApiError::bad_request("the body broke off"),
            })?;
        serde_json::from_slice(&bytes).map(Given).map_err(|error| {
            // Names of types of this program help nobody who writes JSON.
            let why = error.to_string().replace("unknown variant", "unknown word");
            ApiError::bad_request(format!("the body does not fit: {why}"))
        })
    }
}
