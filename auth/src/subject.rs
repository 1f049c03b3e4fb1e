//! Whom a rule is about.
//!
//! Owns the kinds of subjects, how they are written and how networks compare. Never looks at a principal:
//! `ready.rs` does.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::rule::RuleError;

/// Whom a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "SubjectText", into = "SubjectText")]
pub enum Subject {
    /// A user by name.
    User(String),
    /// Everyone who holds a role.
    Role(String),
    /// Everyone in a group.
    Group(String),
    /// A client by the name it gives itself. Only as good as what ties that name to a user.
    ClientId(String),
    /// Clients from a network.
    Cidr(Cidr),
    /// A client certificate's name. Matches nobody until listeners speak TLS.
    Certificate(String),
    /// Clients of a protocol, by its gateway's short name.
    Protocol(String),
    /// Clients without credentials.
    Anonymous,
    /// Everyone, with and without credentials.
    Everyone,
}

/// How a subject is written: kind and value.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SubjectText {
    pub(crate) kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) value: String,
}

impl TryFrom<SubjectText> for Subject {
    type Error = RuleError;

    fn try_from(text: SubjectText) -> Result<Self, RuleError> {
        let SubjectText { kind, value } = text;
        let alone = matches!(kind.as_str(), "anonymous" | "everyone");
        if alone != value.is_empty() {
            return Err(RuleError::Subject {
                kind,
                problem: if alone {
                    "takes no value"
                } else {
                    "needs a value"
                },
            });
        }
        Ok(match kind.as_str() {
            "user" => Subject::User(value),
            "role" => Subject::Role(value),
            "group" => Subject::Group(value),
            "client_id" => Subject::ClientId(value),
            "cidr" => Subject::Cidr(value.parse()?),
            "certificate" => Subject::Certificate(value),
            "protocol" => Subject::Protocol(value),
            "anonymous" => Subject::Anonymous,
            "everyone" => Subject::Everyone,
            _ => {
                return Err(RuleError::Subject {
                    kind,
                    problem: "is not a kind of subject",
                });
            }
        })
    }
}

impl From<Subject> for SubjectText {
    fn from(subject: Subject) -> Self {
        let (kind, value) = match subject {
            Subject::User(value) => ("user", value),
            Subject::Role(value) => ("role", value),
            Subject::Group(value) => ("group", value),
            Subject::ClientId(value) => ("client_id", value),
            Subject::Cidr(cidr) => ("cidr", cidr.to_string()),
            Subject::Certificate(value) => ("certificate", value),
            Subject::Protocol(value) => ("protocol", value),
            Subject::Anonymous => ("anonymous", String::new()),
            Subject::Everyone => ("everyone", String::new()),
        };
        SubjectText {
            kind: kind.to_owned(),
            value,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SubjectText { kind, value } = self.clone().into();
        f.write_str(&kind)?;
        if value.is_empty() {
            Ok(())
        } else {
            write!(f, " {value}")
        }
    }
}

/// A network: an address and how many of its bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr {
    address: IpAddr,
    bits: u8,
}

impl Cidr {
    /// Whether `address` is in the network. An IPv4 address written as IPv6 is the IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                (network.to_bits() ^ address.to_bits()) & mask == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.bits))
                    .unwrap_or(0);
                (network.to_bits() ^ address.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Cidr {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let wrong = || RuleError::Cidr(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.parse::<u8>().map_err(|_| wrong()))?;
        if bits > most {
            return Err(wrong());
        }
        Ok(Cidr { address, bits })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_that_make_no_sense_are_refused() {
        for (text, expected) in [
            (r#"{"kind":"everyone","value":"x"}"#, "takes no value"),
            (r#"{"kind":"user"}"#, "needs a value"),
            (
                r#"{"kind":"planet","value":"x"}"#,
                "is not a kind of subject",
            ),
            (
                r#"{"kind":"cidr","value":"10.0.0.0/33"}"#,
                "is not a network",
            ),
        ] {
            let error = serde_json::from_str::<Subject>(text).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn networks_compare_only_the_bits_that_count() {
        let network: Cidr = "10.1.0.0/16".parse().unwrap();
        assert!(network.contains("10.1.255.1".parse().unwrap()));
        assert!(network.contains("::ffff:10.1.2.3".parse().unwrap()));
        assert!(!network.contains("10.2.0.1".parse().unwrap()));
        let all: Cidr = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("203.0.113.9".parse().unwrap()));
        assert!(!all.contains("2001:db8::1".parse().unwrap()));
        let one: Cidr = "2001:db8::1".parse().unwrap();
        assert!(one.contains("2001:db8::1".parse().unwrap()));
        assert!(!one.contains("2001:db8::2".parse().unwrap()));
    }
}
