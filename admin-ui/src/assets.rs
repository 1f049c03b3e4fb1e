//! The console's files, embedded in the program, and the headers they are served with.
//!
//! Owns the content security policy. Never serves a file from outside `assets/`; files carry their
//! hash as ETag and are revalidated, so that a new version shows at the next load.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use rust_embed::{EmbeddedFile, RustEmbed};

use crate::error::ApiError;

#[derive(RustEmbed)]
#[folder = "assets/"]
struct Assets;

/// What the console's pages may load: only what this server serves, no inline script or style.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers that every response carries.
pub(crate) const SECURITY_HEADERS: [(HeaderName, HeaderValue); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(POLICY),
    ),
    (
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    ),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

/// The file at `path` (`/` is the console's page), or 304 when the browser has it already.
pub(crate) fn serve(path: &str, request: &HeaderMap) -> Response {
    let name = match path.trim_start_matches('/') {
        "" => "index.html",
        name => name,
    };
    let Some((file, media_type)) = find(name) else {
        return ApiError::not_found(format!("there is nothing at {path}")).into_response();
    };
    let etag = etag(&file.metadata.sha256_hash());
    let known = request
        .get(header::IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.split(',').any(|tag| tag.trim() == etag));
    let builder = Response::builder()
        .header(header::ETAG, etag)
        .header(header::CACHE_CONTROL, "no-cache");
    let response = if known {
        builder.status(StatusCode::NOT_MODIFIED).body(Body::empty())
    } else {
        builder
            .header(header::CONTENT_TYPE, media_type)
            .body(Body::from(file.data))
    };
    response.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// A file that is for browsers, and its media type; notes kept beside them are not.
fn find(name: &str) -> Option<(EmbeddedFile, &'static str)> {
    Some((Assets::get(name)?, media_type(name)?))
}

fn etag(hash: &[u8; 32]) -> String {
    let mut tag = String::from("\"");
    for byte in hash.iter().take(12) {
        tag.push_str(&format!("{byte:02x}"));
    }
    tag.push('"');
    tag
}

fn media_type(name: &str) -> Option<&'static str> {
    Some(match name.rsplit('.').next()? {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "txt" => "text/plain; charset=utf-8",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_module_imports_by_relative_path_and_no_page_has_inline_code() {
        for name in Assets::iter() {
            let file = Assets::get(&name).unwrap();
            let Ok(text) = std::str::from_utf8(&file.data) else {
                continue;
            };
            if name.ends_with(".js") {
                let statements = text.split([';', '\n', '}']);
                for part in statements.filter_map(|line| line.trim().strip_prefix("from")) {
                    let part = part.trim().trim_start_matches('"');
                    assert!(
                        part.starts_with('.'),
                        "{name}: {}",
                        part.get(..30).unwrap_or(part)
                    );
                }
                assert!(
                    !text.contains("new Function") && !text.contains("eval("),
                    "{name}"
                );
            }
            if name.ends_with(".html") {
                assert!(
                    !text.contains("<style") && !text.contains(" style="),
                    "{name}"
                );
                for script in text.split("<script").skip(1) {
                    assert!(script.starts_with(" type=\"module\" src=\""), "{name}");
                }
            }
        }
    }

    #[test]
    fn the_notes_beside_the_files_are_not_served() {
        assert!(find("vendor/README.md").is_none());
        assert!(find("index.html").is_some());
    }
}
