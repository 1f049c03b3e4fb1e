//! The opening: a request in HTTP/1.1 that is answered with a change of protocol, or with why not.
//!
//! Owns: what is asked of a request (RFC 6455 section 4.2), which sub-protocol is chosen, whose pages may
//! connect.
//! Never: keeps anything.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use std::net::IpAddr;

/// Lines that a request may have.
const HEADERS_MAX: usize = 64;
/// What the key is joined with, RFC 6455 section 1.3.
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const KEY_BYTES: usize = 16;

/// What a listener asks of a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketSetup {
    /// The only path that is there; any is when absent.
    pub path: Option<String>,
    /// Names of the protocol; of those that a client offers, its first one is chosen.
    pub subprotocols: &'static [&'static str],
    /// Whether a client that offers none of them is refused.
    pub subprotocol_required: bool,
    /// Whose pages may connect.
    pub origins: Origins,
    /// Longest frame; a longer one ends the connection.
    pub frame_bytes_max: u64,
}

/// Whose pages may connect: a browser says where the page is from that opens a WebSocket. Programs that
/// are no browser say nothing, and may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origins {
    /// Everyone's.
    Any,
    /// Those that a server on this machine gave out.
    Loopback,
    /// These, such as `https://example.org`.
    Listed(Vec<String>),
}

impl Origins {
    fn allow(&self, origin: &str) -> bool {
        match self {
            Origins::Any => true,
            Origins::Loopback => is_loopback(origin),
            Origins::Listed(list) => list.iter().any(|one| one.eq_ignore_ascii_case(origin)),
        }
    }
}

fn is_loopback(origin: &str) -> bool {
    let Some((_, authority)) = origin.split_once("://") else {
        return false;
    };
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let by_number = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    by_number || host.eq_ignore_ascii_case("localhost")
}

/// What a request is answered.
pub(super) enum Answer {
    Open(Vec<u8>),
    Refused {
        response: Vec<u8>,
        why: &'static str,
    },
}

/// Answers a request, which is whole unless it is too long or no request at all.
pub(super) fn answer(setup: &WebSocketSetup, request: &[u8]) -> Answer {
    match examine(setup, request) {
        Ok(response) => Answer::Open(response),
        Err((status, why)) => Answer::Refused {
            response: refusal(status, why),
            why,
        },
    }
}

fn refusal(status: &str, why: &str) -> Vec<u8> {
    let more = match status.get(..3) {
        Some("426") => "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
        _ => "",
    };
    let length = why.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\n{more}Content-Type: text/plain\r\n\
         Content-Length: {length}\r\n\r\n{why}\n"
    )
    .into_bytes()
}

type Refused = (&'static str, &'static str);

const BAD_REQUEST: &str = "400 Bad Request";
const NO_REQUEST: &str = "it sent no request for a WebSocket";
const UPGRADE: &str = "426 Upgrade Required";

fn examine(setup: &WebSocketSetup, text: &[u8]) -> Result<Vec<u8>, Refused> {
    if !text.starts_with(super::REQUEST_START) {
        return Err((BAD_REQUEST, NO_REQUEST));
    }
    let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut lines);
    match request.parse(text) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => {
            return Err((
                "431 Request Header Fields Too Large",
                "the request of its WebSocket opening is too long",
            ));
        }
        Err(_) => return Err((BAD_REQUEST, NO_REQUEST)),
    }
    let target = request.path.unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default();
    if setup.path.as_ref().is_some_and(|wanted| wanted != path) {
        return Err(("404 Not Found", "it asked for a path that is not here"));
    }
    let head = Head(request.headers);
    if request.version != Some(1) || head.one("host").is_none() {
        return Err((
            BAD_REQUEST,
            "its WebSocket opening is not HTTP/1.1 with a host",
        ));
    }
    if !head.has("upgrade", "websocket") || !head.has("connection", "upgrade") {
        return Err((
            UPGRADE,
            "it asked in HTTP for something else than a WebSocket",
        ));
    }
    if head.one("sec-websocket-version") != Some("13") {
        return Err((UPGRADE, "its WebSocket is of another version than 13"));
    }
    let key = head.one("sec-websocket-key").unwrap_or_default();
    if BASE64_STANDARD.decode(key).map(|key| key.len()) != Ok(KEY_BYTES) {
        return Err((BAD_REQUEST, "its WebSocket opening has no key of 16 bytes"));
    }
    if let Some(origin) = head.one("origin")
        && !setup.origins.allow(origin)
    {
        return Err(("403 Forbidden", "pages of its origin may not connect"));
    }
    let offered = head.all("sec-websocket-protocol");
    let known = |name: &&str| setup.subprotocols.contains(name);
    let chosen = offered.into_iter().find(known);
    if chosen.is_none() && setup.subprotocol_required {
        return Err((
            BAD_REQUEST,
            "it offered no WebSocket sub-protocol that is spoken here",
        ));
    }
    let mut keyed = key.as_bytes().to_vec();
    keyed.extend_from_slice(KEY_SUFFIX);
    let accept = BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &keyed));
    let chosen = chosen.map_or_else(String::new, |name| {
        format!("Sec-WebSocket-Protocol: {name}\r\n")
    });
    Ok(format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n{chosen}\r\n"
    )
    .into_bytes())
}

/// The lines of a request.
struct Head<'a>(&'a [httparse::Header<'a>]);

impl<'a> Head<'a> {
    fn values(&self, name: &'static str) -> impl Iterator<Item = &'a str> {
        let lines = self.0.iter();
        lines
            .filter(move |line| line.name.eq_ignore_ascii_case(name))
            .filter_map(|line| std::str::from_utf8(line.value).ok())
            .map(str::trim)
    }

    /// A value that may be given once; none when it is given twice.
    fn one(&self, name: &'static str) -> Option<&'a str> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// The parts of a value that is a list, which may stand in several lines.
    fn all(&self, name: &'static str) -> Vec<&'a str> {
        let parts = self.values(name).flat_map(|value| value.split(','));
        parts
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .collect()
    }

    fn has(&self, name: &'static str, part: &str) -> bool {
        let parts = self.all(name);
        parts.iter().any(|one| one.eq_ignore_ascii_case(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> WebSocketSetup {
        WebSocketSetup {
            path: None,
            subprotocols: &["mqtt", "mqttv3.1"],
            subprotocol_required: true,
            origins: Origins::Any,
            frame_bytes_max: 1000,
        }
    }

    /// The request of RFC 6455 section 1.3, for `mqtt`.
    const REQUEST: &str = "GET /chat?x=1 HTTP/1.1\r\nHost: server.example.com\r\n\
        Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://example.com\r\n\
        Sec-WebSocket-Protocol: chat, mqtt, mqttv3.1\r\nSec-WebSocket-Version: 13\r\n\r\n";

    fn answered(setup: &WebSocketSetup, request: &str) -> String {
        let response = match answer(setup, request.as_bytes()) {
            Answer::Open(response) => response,
            Answer::Refused { response, why } => {
                let text = String::from_utf8(response.clone()).unwrap();
                assert!(text.ends_with(&format!("\r\n\r\n{why}\n")), "{text}");
                response
            }
        };
        String::from_utf8(response).unwrap()
    }

    #[test]
    fn the_opening_of_the_standard_is_answered_as_there() {
        let response = answered(&setup(), REQUEST);
        assert!(response.starts_with("HTTP/1.1 101 "), "{response}");
        assert!(response.contains("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
        assert!(response.ends_with("\r\n\r\n"));
    }

    #[test]
    fn of_the_names_offered_the_first_known_one_is_chosen() {
        // [MQTT-6.0.0-4]
        let chosen =
            |offer: &str| answered(&setup(), &REQUEST.replace("chat, mqtt, mqttv3.1", offer));
        assert!(chosen("chat, mqtt, mqttv3.1").contains("Sec-WebSocket-Protocol: mqtt\r\n"));
        assert!(chosen("mqttv3.1,mqtt").contains("Sec-WebSocket-Protocol: mqttv3.1\r\n"));
        let two_lines = "chat\r\nSec-WebSocket-Protocol: mqtt";
        assert!(chosen(two_lines).contains("Sec-WebSocket-Protocol: mqtt\r\n"));
        // [MQTT-6.0.0-3]
        assert!(chosen("chat").starts_with("HTTP/1.1 400 "));
        let open = WebSocketSetup {
            subprotocol_required: false,
            ..setup()
        };
        let none = answered(&open, &REQUEST.replace("chat, mqtt, mqttv3.1", "chat"));
        assert!(
            none.starts_with("HTTP/1.1 101 ") && !none.contains("Protocol:"),
            "{none}"
        );
    }

    #[test]
    fn what_is_no_opening_is_refused_with_its_status() {
        for (from, to, status) in [
            ("GET", "POST", "400"),
            ("HTTP/1.1", "HTTP/1.0", "400"),
            ("Host: server.example.com\r\n", "", "400"),
            ("Upgrade: websocket", "Upgrade: h2c", "426"),
            ("keep-alive, Upgrade", "keep-alive", "426"),
            ("Version: 13", "Version: 8", "426"),
            ("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZSBub25j", "400"),
            ("Host", "H\u{0}st", "400"),
            ("\r\n\r\n", "\r\n", "431"),
        ] {
            let response = answered(&setup(), &REQUEST.replace(from, to));
            let begin = format!("HTTP/1.1 {status} ");
            assert!(response.starts_with(&begin), "{from} -> {to}: {response}");
        }
        let elsewhere = WebSocketSetup {
            path: Some("/mqtt".to_owned()),
            ..setup()
        };
        assert!(answered(&elsewhere, REQUEST).starts_with("HTTP/1.1 404 "));
        let here = REQUEST.replace("/chat", "/mqtt");
        assert!(answered(&elsewhere, &here).starts_with("HTTP/1.1 101 "));
    }

    #[test]
    fn pages_from_elsewhere_are_refused_where_only_some_may_connect() {
        let status = |origins: Origins, origin: &str| {
            let request = REQUEST.replace("Origin: http://example.com\r\n", origin);
            let response = answered(&WebSocketSetup { origins, ..setup() }, &request);
            response[9..12].to_owned()
        };
        for (origin, loopback) in [
            ("", "101"),
            ("Origin: http://localhost:3000\r\n", "101"),
            ("Origin: https://127.0.0.9\r\n", "101"),
            ("Origin: http://[::1]:80\r\n", "101"),
            ("Origin: http://example.com\r\n", "403"),
            ("Origin: http://localhost.example.com\r\n", "403"),
            ("Origin: null\r\n", "403"),
        ] {
            assert_eq!(status(Origins::Loopback, origin), loopback, "{origin}");
            assert_eq!(status(Origins::Any, origin), "101", "{origin}");
        }
        let listed = Origins::Listed(vec!["https://app.example.com".to_owned()]);
        let own = "Origin: https://APP.example.com\r\n";
        assert_eq!(status(listed.clone(), own), "101");
        assert_eq!(status(listed, "Origin: http://example.com\r\n"), "403");
    }
}
