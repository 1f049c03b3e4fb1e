//! A small server that speaks as much S3 as a tier needs, and checks every signature.
//!
//! It knows objects by path (`/bucket/key`), ranges, uploads in parts, lists in pages, single removals. One bucket.

use anabranch_store::tier::TierOptions;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use ring::{digest, hmac};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub const BUCKET: &str = "tiers";
pub const KEY_ID: &str = "the-key";
pub const SECRET: &str = "the-secret";

/// Objects told of in one page of a list.
const PAGE: usize = 3;

#[derive(Default)]
pub struct Shared {
    pub objects: Mutex<BTreeMap<String, Bytes>>,
    uploads: Mutex<HashMap<String, BTreeMap<u32, Bytes>>>,
    /// Answers nothing but an error.
    pub down: AtomicBool,
    pub requests: Mutex<Vec<String>>,
}

/// The running server; it ends with the test's runtime.
pub struct S3 {
    pub address: SocketAddr,
    pub shared: Arc<Shared>,
}

impl S3 {
    pub async fn start() -> S3 {
        let shared = Arc::new(Shared::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().fallback(serve).with_state(shared.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        S3 { address, shared }
    }

    /// Parts of larger objects that came so far.
    #[allow(dead_code, reason = "not every test file uses all of it")]
    pub fn parts_sent(&self) -> usize {
        let told = self.shared.requests.lock().unwrap();
        told.iter()
            .filter(|one| one.contains("partNumber="))
            .count()
    }

    pub fn keys(&self) -> Vec<String> {
        self.shared
            .objects
            .lock()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    }
}

/// A tier in the bucket that keeps nothing on the disk.
pub fn bucket(s3: &S3) -> TierOptions {
    TierOptions {
        url: format!("s3://{}/some/where", BUCKET),
        endpoint: format!("http://{}", s3.address),
        access_key_id: KEY_ID.to_owned(),
        secret_access_key: SECRET.to_owned(),
        allow_http: true,
        local_bytes: 0,
        ..TierOptions::default()
    }
}

fn refuse(status: StatusCode, code: &str) -> Response {
    let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
    (status, text).into_response()
}

async fn serve(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 64 << 20).await.unwrap();
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let told = format!("{} {path}?{query}", parts.method);
    shared.requests.lock().unwrap().push(told);
    if shared.down.load(Ordering::Relaxed) {
        return refuse(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
    }
    if let Err(code) = signed(&parts.method, &path, &query, &parts.headers, &body) {
        return refuse(StatusCode::FORBIDDEN, code);
    }
    let bucket = format!("/{BUCKET}");
    let Some(key) = path.strip_prefix(&bucket) else {
        return refuse(StatusCode::NOT_FOUND, "NoSuchBucket");
    };
    let key = decoded(key.trim_start_matches('/'));
    let query: HashMap<String, String> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        })
        .collect();
    if key.is_empty() && parts.method == Method::GET {
        return list(&shared, &query);
    }
    match (parts.method, query.get("uploadId")) {
        (Method::PUT, Some(upload)) => {
            let number = query["partNumber"].parse().unwrap();
            let mut uploads = shared.uploads.lock().unwrap();
            let Some(upload) = uploads.get_mut(upload) else {
                return refuse(StatusCode::NOT_FOUND, "NoSuchUpload");
            };
            upload.insert(number, body);
            (StatusCode::OK, [("etag", format!("\"part-{number}\""))]).into_response()
        }
        (Method::POST, Some(upload)) => {
            let Some(parts) = shared.uploads.lock().unwrap().remove(upload) else {
                return refuse(StatusCode::NOT_FOUND, "NoSuchUpload");
            };
            let whole: Vec<u8> = parts.into_values().flatten().collect();
            shared.objects.lock().unwrap().insert(key, whole.into());
            "<CompleteMultipartUploadResult><ETag>\"whole\"</ETag></CompleteMultipartUploadResult>"
                .into_response()
        }
        (Method::POST, None) => {
            let mut uploads = shared.uploads.lock().unwrap();
            let id = format!("upload-{}", uploads.len());
            uploads.insert(id.clone(), BTreeMap::new());
            format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>")
                .into_response()
        }
        (Method::PUT, None) => {
            shared.objects.lock().unwrap().insert(key, body);
            (StatusCode::OK, [("etag", "\"one\"")]).into_response()
        }
        (Method::DELETE, _) => {
            shared.objects.lock().unwrap().remove(&key);
            StatusCode::NO_CONTENT.into_response()
        }
        (method @ (Method::GET | Method::HEAD), _) => {
            let found = shared.objects.lock().unwrap().get(&key).cloned();
            let Some(object) = found else {
                return refuse(StatusCode::NOT_FOUND, "NoSuchKey");
            };
            get(&method, &parts.headers, object)
        }
        _ => refuse(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
    }
}

fn get(method: &Method, headers: &HeaderMap, object: Bytes) -> Response {
    let mut answer = Response::builder()
        .header("etag", "\"one\"")
        .header("last-modified", "Mon, 30 Nov 2026 22:00:00 GMT");
    let range = headers.get("range").map(|range| range.to_str().unwrap());
    let range = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let part = match range {
        None => object,
        Some((from, to)) => {
            let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
            if from >= object.len() {
                return refuse(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange");
            }
            let to = to.min(object.len() - 1);
            let told = format!("bytes {from}-{to}/{}", object.len());
            answer = answer
                .status(StatusCode::PARTIAL_CONTENT)
                .header("content-range", told);
            object.slice(from..=to)
        }
    };
    answer = answer.header("content-length", part.len());
    let body = match *method == Method::HEAD {
        true => Body::empty(),
        false => Body::from(part),
    };
    answer.body(body).unwrap()
}

fn list(shared: &Shared, query: &HashMap<String, String>) -> Response {
    let prefix = query.get("prefix").cloned().unwrap_or_default();
    let after = query.get("continuation-token").cloned().unwrap_or_default();
    let objects = shared.objects.lock().unwrap();
    let found: Vec<_> = objects
        .iter()
        .filter(|(key, _)| key.starts_with(&prefix) && **key > after)
        .collect();
    let mut xml = "<?xml version=\"1.0\"?><ListBucketResult>".to_owned();
    for (key, object) in found.iter().take(PAGE) {
        let _ = write!(
            xml,
            "<Contents><Key>{key}</Key><Size>{}</Size><LastModified>2026-11-30T22:00:00.000Z</LastModified>\
             <ETag>\"one\"</ETag></Contents>",
            object.len()
        );
    }
    if found.len() > PAGE {
        let _ = write!(
            xml,
            "<NextContinuationToken>{}</NextContinuationToken>",
            found[PAGE - 1].0
        );
    }
    xml.push_str("</ListBucketResult>");
    xml.into_response()
}

/// Percent-decoded.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                let digits = std::str::from_utf8(&digits).unwrap();
                bytes.push(u8::from_str_radix(digits, 16).unwrap());
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Whether a request has the signature (version 4) of the one account; the error's code otherwise.
fn signed(
    method: &Method,
    path: &str,
    query: &str,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<(), &'static str> {
    let header = |name: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default()
    };
    let authorization = header("authorization");
    let field = |name: &str| {
        let at = authorization.find(name)? + name.len();
        authorization[at..].split(',').next()
    };
    let credential = field("Credential=").ok_or("AccessDenied")?;
    let (key_id, scope) = credential.split_once('/').ok_or("AccessDenied")?;
    if key_id != KEY_ID {
        return Err("InvalidAccessKeyId");
    }
    let names = field("SignedHeaders=").ok_or("AccessDenied")?;
    let signature = field("Signature=").ok_or("AccessDenied")?;
    let digest_of = |bytes: &[u8]| hex(digest::digest(&digest::SHA256, bytes).as_ref());
    if header("x-amz-content-sha256") != digest_of(body) {
        return Err("XAmzContentSHA256Mismatch");
    }
    let mut pairs: Vec<String> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| match pair.contains('=') {
            true => pair.to_owned(),
            false => format!("{pair}="),
        })
        .collect();
    pairs.sort();
    let signed = names.split(';').fold(String::new(), |mut text, name| {
        let _ = writeln!(text, "{name}:{}", header(name).trim());
        text
    });
    let canonical = format!(
        "{method}\n{path}\n{}\n{signed}\n{names}\n{}",
        pairs.join("&"),
        header("x-amz-content-sha256")
    );
    let to_sign = format!(
        "AWS4-HMAC-SHA256\n{}\n{scope}\n{}",
        header("x-amz-date"),
        digest_of(canonical.as_bytes())
    );
    let sign = |key: &[u8], text: &str| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
    };
    let first = format!("AWS4{SECRET}").into_bytes();
    let key = scope.split('/').fold(first, |key, part| sign(&key, part));
    match hex(&sign(&key, &to_sign)) == signature {
        true => Ok(()),
        false => Err("SignatureDoesNotMatch"),
    }
}
