//! Errors as the API sends them: a status and `{"error", "reason"}`.
//!
//! Owns the table of `API.md`, section "Errors". Never lets a library's own error text out as a body.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::backend::BackendError;

/// A request that was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    error: &'static str,
    reason: String,
    retry_after_s: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, error: &'static str, reason: impl Into<String>) -> Self {
        ApiError {
            status,
            error,
            reason: reason.into(),
            retry_after_s: None,
        }
    }

    pub(crate) fn bad_request(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    pub(crate) fn unauthenticated(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", reason)
    }

    pub(crate) fn forbidden(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    pub(crate) fn csrf() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "csrf",
            "a request that changes something must carry the header x-anabranch: 1",
        )
    }

    pub(crate) fn host(host: &str) -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "host",
            format!(
                "the host name {host:?} is not one of this console's; use an address, or allow the name in the configuration"
            ),
        )
    }

    pub(crate) fn not_found(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", reason)
    }

    pub(crate) fn too_large(limit_bytes: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            format!("the body is larger than {limit_bytes} bytes"),
        )
    }

    pub(crate) fn too_many_attempts(retry_after_s: u64) -> Self {
        let mut error = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too_many_attempts",
            format!("too many failed logins from this address; try again in {retry_after_s} s"),
        );
        error.retry_after_s = Some(retry_after_s);
        error
    }
}

impl From<BackendError> for ApiError {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Invalid(reason) => Self::bad_request(reason),
            BackendError::Forbidden(reason) => Self::forbidden(reason),
            BackendError::NotFound(reason) => Self::not_found(reason),
            BackendError::Conflict(reason) => Self::new(StatusCode::CONFLICT, "conflict", reason),
            BackendError::Unavailable(reason) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", reason)
            }
        }
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = serde_json::json!({"error": self.error, "reason": self.reason});
        let mut response = (self.status, axum::Json(body)).into_response();
        if let Some(seconds) = self.retry_after_s {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
