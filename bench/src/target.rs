//! Where a broker listens, and what it tells about itself.
//!
//! Owns addresses and the reading of `/metrics`. Never starts a broker. Next: `flow.rs`,
//! `brokers/`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::row::{Feature, Row};

/// How long one connection or answer on the control side may take.
const CONTROL_LIMIT: Duration = Duration::from_secs(5);
/// A metrics page larger than this is cut.
const METRICS_MAX_BYTES: u64 = 4 << 20;

/// A running broker.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Its name in the report.
    pub name: String,
    /// MQTT listener.
    pub mqtt: Option<SocketAddr>,
    /// AMQP listener.
    pub amqp: Option<SocketAddr>,
    /// What it is known to lack beyond a listener: rows that need it are left out.
    pub lacks: Vec<Feature>,
    /// HTTP listener with `/metrics`.
    pub http: Option<SocketAddr>,
    /// Root of its processes; without it nothing is said of its cost.
    pub pid: Option<u32>,
    /// User and password for both protocols; without it anonymous MQTT and the default account
    /// of AMQP.
    pub login: Option<(String, String)>,
}

/// Why a `--broker` argument is no target.
#[derive(Debug, thiserror::Error)]
#[error(
    "{part:?}: expected NAME=mqtt:HOST:PORT,amqp:HOST:PORT[,http:HOST:PORT][,pid:N][,login:USER:PASSWORD][,mqtt311]"
)]
pub struct TargetError {
    part: String,
}

impl std::str::FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let wrong = |part: &str| TargetError {
            part: part.to_owned(),
        };
        let (name, parts) = text.split_once('=').ok_or_else(|| wrong(text))?;
        let mut target = Target {
            name: name.to_owned(),
            ..Target::default()
        };
        for part in parts.split(',') {
            let (key, value) = part.split_once(':').unwrap_or((part, ""));
            let address = || value.parse::<SocketAddr>().map_err(|_| wrong(part));
            match key {
                "mqtt" => target.mqtt = Some(address()?),
                "amqp" => target.amqp = Some(address()?),
                "http" => target.http = Some(address()?),
                "pid" => target.pid = Some(value.parse().map_err(|_| wrong(part))?),
                "login" => {
                    let (user, password) = value.split_once(':').ok_or_else(|| wrong(part))?;
                    target.login = Some((user.to_owned(), password.to_owned()));
                }
                "mqtt311" => target.lacks.push(Feature::Mqtt5),
                _ => return Err(wrong(part)),
            }
        }
        Ok(target)
    }
}

impl Target {
    /// What a row needs and the broker lacks, if anything.
    pub fn lack(&self, row: &Row) -> Option<Feature> {
        row.needs().into_iter().find(|feature| match feature {
            Feature::Mqtt => self.mqtt.is_none(),
            Feature::Amqp => self.amqp.is_none(),
            Feature::Mqtt5
            | Feature::Qos2
            | Feature::SharedSubscription
            | Feature::RetainedByWildcard => self.lacks.contains(feature),
        })
    }

    /// User and password to give to MQTT, if any.
    pub fn mqtt_login(&self) -> Option<(&str, &str)> {
        self.login
            .as_ref()
            .map(|(user, password)| (user.as_str(), password.as_str()))
    }

    /// User and password to give to AMQP.
    pub fn amqp_login(&self) -> (&str, &str) {
        self.mqtt_login()
            .unwrap_or(crate::amqp::client::DEFAULT_LOGIN)
    }

    /// How many syncs to disk the broker says it has made, when its metrics tell.
    pub fn syncs(&self) -> Option<f64> {
        sum_of_syncs(&get(self.http?, "/metrics")?)
    }
}

fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, CONTROL_LIMIT).ok()?;
    stream.set_read_timeout(Some(CONTROL_LIMIT)).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = Vec::new();
    stream
        .take(METRICS_MAX_BYTES)
        .read_to_end(&mut answer)
        .ok()?;
    let answer = String::from_utf8_lossy(&answer);
    answer
        .starts_with("HTTP/1.1 200")
        .then(|| answer.into_owned())
}

/// Adds up all samples of counters whose name speaks of syncs: `..._sync_..._total`,
/// `..._syncs_total`, `..._fsync..._total`; times (`_seconds`) and bytes are left out.
fn sum_of_syncs(text: &str) -> Option<f64> {
    let mut sum = None;
    for line in text.lines() {
        let name = line.split(['{', ' ']).next().unwrap_or("");
        let counts = name.ends_with("_total") && name.contains("sync");
        if counts && !name.contains("seconds") && !name.contains("bytes") {
            let value = line
                .rsplit(' ')
                .next()
                .and_then(|value| value.parse::<f64>().ok());
            sum = value.map(|value| sum.unwrap_or(0.0) + value).or(sum);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_argument_names_its_listeners() {
        let text = "r=mqtt:127.0.0.1:1883,amqp:127.0.0.1:5672,pid:7,login:u:p:q,mqtt311";
        let target: Target = text.parse().unwrap();
        assert_eq!(target.name, "r");
        assert_eq!(target.mqtt.unwrap().port(), 1883);
        assert_eq!(target.amqp.unwrap().port(), 5672);
        assert_eq!(target.pid, Some(7));
        assert_eq!(target.amqp_login(), ("u", "p:q"));
        assert_eq!(target.lacks, [Feature::Mqtt5]);
        for wrong in ["", "r", "r=mqtt", "r=mqtt:x", "r=port:127.0.0.1:1"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_row_is_left_out_when_the_broker_lacks_what_it_needs() {
        let target: Target = "r=mqtt:127.0.0.1:1,mqtt311".parse().unwrap();
        let lack = |name: &str| {
            let rows = crate::rows::select(&[name.to_owned()]).unwrap();
            target.lack(rows[0])
        };
        assert_eq!(lack("m-p2p-q2"), None);
        assert_eq!(lack("m-p2p-q1-v5"), Some(Feature::Mqtt5));
        assert_eq!(lack("x-m2a-q0"), Some(Feature::Amqp));
    }

    #[test]
    fn syncs_of_all_shards_are_added() {
        let text = "# TYPE anabranch_journal_syncs counter\n\
                    anabranch_journal_syncs_total{shard=\"0\"} 3\n\
                    anabranch_journal_syncs_total{shard=\"1\"} 4\n\
                    anabranch_journal_sync_seconds_total 9\n\
                    anabranch_messages_total 100\n";
        assert_eq!(sum_of_syncs(text), Some(7.0));
        assert_eq!(sum_of_syncs("anabranch_messages_total 100\n"), None);
    }
}
