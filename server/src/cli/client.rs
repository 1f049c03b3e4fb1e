//! A client of the HTTP API, as one user.
//!
//! Owns: credentials, the ways a request can fail, percent-encoding.
//! Never: retries.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use ureq::Agent;

use super::ServerFlags;
use crate::node::CONFIGURATION_CODE;

/// How long a request may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The file of the data folder that holds the administrator's first password.
pub const PASSWORD_FILE: &str = "admin-password";

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The server said no.
    #[error("{0}")]
    Refused(String),
    /// Something here went wrong.
    #[error("{0}")]
    Failed(String),
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The configuration cannot be used.
    #[error("{0}")]
    Configuration(String),
    /// No server answers.
    #[error("no server answers at {url}: {why}")]
    Unreachable {
        /// Where it was looked for.
        url: String,
        /// What went wrong.
        why: String,
    },
}

impl Failure {
    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Refused(_) | Failure::Failed(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Configuration(_) => CONFIGURATION_CODE,
            Failure::Unreachable { .. } => 3,
        }
    }
}

/// The API, as one user.
pub(super) struct Client {
    agent: Agent,
    base: String,
    authorization: String,
    /// Said when the login is refused.
    hint: Option<String>,
}

impl Client {
    pub(super) fn new(server: &ServerFlags) -> Result<Client, Failure> {
        let user = server.user.clone().unwrap_or_else(|| "admin".to_owned());
        let (password, hint) = match &server.password {
            Some(password) => (password.clone(), None),
            None => {
                let file = server.data.join(PASSWORD_FILE);
                let hint = format!(
                    "the password is the one in {}, the administrator's first; if it was changed, use --password or ANABRANCH_PASSWORD",
                    file.display()
                );
                (first_password(&file, &user)?, Some(hint))
            }
        };
        let agent = Agent::config_builder()
            .timeout_global(Some(LIMIT))
            .http_status_as_error(false)
            .build()
            .new_agent();
        let credentials = STANDARD.encode(format!("{user}:{password}"));
        Ok(Client {
            agent,
            base: server.url.trim_end_matches('/').to_owned(),
            authorization: format!("Basic {credentials}"),
            hint,
        })
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, Failure> {
        let request = self.agent.get(self.url(path));
        self.answer(request.header("authorization", &self.authorization).call())
    }

    pub(super) fn delete(&self, path: &str) -> Result<Value, Failure> {
        let request = self.agent.delete(self.url(path));
        let request = request.header("authorization", &self.authorization);
        self.answer(request.header("x-anabranch", "1").call())
    }

    /// A delete that says with a body of what.
    pub(super) fn delete_with(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.agent.delete(self.url(path)).force_send_body();
        let request = request.header("authorization", &self.authorization);
        self.answer(request.header("x-anabranch", "1").send_json(body))
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.agent.post(self.url(path));
        let request = request.header("authorization", &self.authorization);
        self.answer(request.header("x-anabranch", "1").send_json(body))
    }

    pub(super) fn put(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.agent.put(self.url(path));
        let request = request.header("authorization", &self.authorization);
        self.answer(request.header("x-anabranch", "1").send_json(body))
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/v1{path}", self.base)
    }

    fn answer(
        &self,
        result: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Value, Failure> {
        let mut response = match result {
            Ok(response) => response,
            Err(ureq::Error::BadUri(why)) => return Err(Failure::Usage(format!("--url: {why}"))),
            Err(error) => {
                return Err(Failure::Unreachable {
                    url: self.base.clone(),
                    why: error.to_string(),
                });
            }
        };
        let status = response.status();
        let text = response.body_mut().read_to_string().unwrap_or_default();
        let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        if status.is_success() {
            return Ok(body);
        }
        let reason = body["reason"].as_str().or_else(|| body["error"].as_str());
        let reason = reason.map_or_else(|| format!("the server answered {status}"), str::to_owned);
        let hint = self.hint.as_deref().filter(|_| status == 401);
        Err(Failure::Refused(match hint {
            Some(hint) => format!("{reason}; {hint}"),
            None => reason,
        }))
    }
}

fn first_password(file: &Path, user: &str) -> Result<String, Failure> {
    if user != "admin" {
        let why = format!("no password for {user}: use --password or ANABRANCH_PASSWORD");
        return Err(Failure::Usage(why));
    }
    let text = std::fs::read_to_string(file).map_err(|error| {
        let place = file.display();
        Failure::Usage(format!(
            "no password: use --password or ANABRANCH_PASSWORD, or --data with the folder of a node here ({place}: {error})"
        ))
    })?;
    Ok(text.trim().to_owned())
}

/// Writes a name so that it is one part of a path or a value of a query.
pub(super) fn encode(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A query of what is given: `?a=1&b=2`, or nothing.
pub(super) fn query(pairs: &[(&str, Option<String>)]) -> String {
    let given = pairs.iter().filter_map(|(name, value)| {
        value
            .as_ref()
            .map(|value| format!("{name}={}", encode(value)))
    });
    let joined = given.collect::<Vec<_>>().join("&");
    if joined.is_empty() {
        joined
    } else {
        format!("?{joined}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_byte_by_byte() {
        assert_eq!(encode("/"), "%2F");
        assert_eq!(encode("a b.c~ä"), "a%20b.c~%C3%A4");
        assert_eq!(query(&[("a", Some("x&y".into())), ("b", None)]), "?a=x%26y");
        assert_eq!(query(&[("b", None)]), "");
    }

    #[test]
    fn exit_codes_are_stable() {
        let unreachable = Failure::Unreachable {
            url: String::new(),
            why: String::new(),
        };
        assert_eq!(Failure::Refused(String::new()).code(), 1);
        assert_eq!(Failure::Failed(String::new()).code(), 1);
        assert_eq!(Failure::Usage(String::new()).code(), 2);
        assert_eq!(Failure::Configuration(String::new()).code(), 2);
        assert_eq!(unreachable.code(), 3);
    }
}
