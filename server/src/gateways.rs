//! The protocols of this server: the only place that names their crates.
//!
//! A new protocol is one line that imports it and one line in [`all`].
//!
//! Owns: which gateways exist, where they listen by default, how queues and keys are spelled in the API.
//! Never: what a gateway's configuration means.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;

use anabranch_amqp::{AmqpGateway, address as spelling, names::PREDECLARED};
use anabranch_core::address::{Address, AddressError, TopicFilter};
use anabranch_core::gateway::{ExchangeKind, Gateway};
use anabranch_core::meta::ExchangeSpec;
use anabranch_core::properties::Codecs;
use anabranch_mqtt::MqttGateway;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::config::{Config, ConfigError, GatewaySection};

/// The exchange that sessions publish to and are bound to.
pub const TOPIC_EXCHANGE: &str = "amq.topic";

/// Every gateway.
fn all() -> Vec<Registered> {
    vec![
        register("mqtt", "0.0.0.0:1883", MqttGateway::new),
        register("amqp", "0.0.0.0:5672", AmqpGateway::new),
    ]
}

type Make = Box<dyn Fn(Table, Codecs) -> Result<Arc<dyn Gateway>, String>>;

struct Registered {
    section: GatewaySection,
    make: Make,
}

fn register<C, G, E>(
    name: &'static str,
    address: &'static str,
    new: impl Fn(C, Codecs) -> Result<G, E> + 'static,
) -> Registered
where
    C: Default + Serialize + DeserializeOwned,
    G: Gateway + 'static,
    E: Display,
{
    let section = GatewaySection {
        name,
        address,
        // A gateway's configuration is numbers and text; writing it cannot fail.
        defaults: Table::try_from(C::default()).unwrap_or_default(),
    };
    let make = move |section: Table, codecs: Codecs| {
        let read: Result<C, toml::de::Error> = section.clone().try_into();
        let config = read.map_err(|error| {
            let refused = |config: C| new(config, Codecs::default()).err();
            outside(name, &section, |config| {
                refused(config).map(|why| why.to_string())
            })
            .unwrap_or_else(|| error.message().to_owned())
        })?;
        let gateway = new(config, codecs).map_err(|error| error.to_string())?;
        Ok(Arc::new(gateway) as Arc<dyn Gateway>)
    };
    Registered {
        section,
        make: Box::new(make),
    }
}

/// Largest values of the kinds of numbers that a section's keys may be.
const LARGEST: [i64; 4] = [i64::MAX, u32::MAX as i64, u16::MAX as i64, u8::MAX as i64];

/// What a number must be that its key cannot even hold, in the words a gateway has for a range. The
/// gateway's own words, where it does not take 0 either; else what the key can hold.
fn outside<C: DeserializeOwned>(
    gateway: &str,
    section: &Table,
    refused: impl Fn(C) -> Option<String>,
) -> Option<String> {
    let alone = |key: &str, value: i64| -> Option<C> {
        let table = Table::from_iter([(key.to_owned(), Value::Integer(value))]);
        table.try_into().ok()
    };
    let numbers = section
        .iter()
        .filter_map(|(key, value)| Some((key, value.as_integer()?)));
    let (key, _) = numbers
        .into_iter()
        .find(|(key, value)| alone(key, *value).is_none())?;
    let own_words = alone(key, 0).and_then(&refused);
    let held = LARGEST.into_iter().find(|most| alone(key, *most).is_some());
    own_words.or_else(|| Some(format!("gateway.{gateway}.{key} must be 0 to {}", held?)))
}

/// The gateways' sections, for the configuration.
pub fn sections() -> Vec<GatewaySection> {
    all().into_iter().map(|gateway| gateway.section).collect()
}

/// Gateways with the addresses they listen on.
pub type Listening = Vec<(Arc<dyn Gateway>, SocketAddr)>;

/// Makes all gateways as configured, each knowing the conversions of all, with those conversions.
///
/// # Errors
/// When a section does not fit.
pub fn make(config: &Config) -> Result<(Listening, Codecs), ConfigError> {
    let registered = all();
    let make = |gateway: &Registered, codecs: Codecs| {
        let name = gateway.section.name;
        let made = (gateway.make)(config.section_of(name), codecs);
        made.map_err(|why| config.refuse_section(name, &why))
    };
    // A gateway is told everyone's conversion when it is made, its own included: so each is made twice.
    let mut codecs = Codecs::default();
    for gateway in &registered {
        let first = make(gateway, Codecs::default())?;
        codecs.register(first.tag(), first.codec());
    }
    let mut listening = Vec::new();
    for gateway in &registered {
        let address = config.address_of(gateway.section.name)?;
        listening.push((make(gateway, codecs.clone())?, address));
    }
    Ok((listening, codecs))
}

/// Exchanges that every vhost has from the start.
pub fn predeclared() -> Vec<ExchangeSpec> {
    let spec = |(name, kind): &(&str, ExchangeKind)| ExchangeSpec {
        name: Arc::from(*name),
        kind: *kind,
        durable: true,
        auto_delete: false,
        internal: false,
        alternate: None,
        arguments: Default::default(),
    };
    PREDECLARED.iter().map(spec).collect()
}

/// The address that a routing key of the API stands for: as applications spell it, `.` between levels.
///
/// # Errors
/// When it has more levels than core takes.
pub fn key_address(key: &str) -> Result<(Address, Bytes), AddressError> {
    let converted = spelling::key_to_address(&Bytes::copy_from_slice(key.as_bytes()))?;
    Ok((converted.address, converted.origin_key))
}

/// The filter that a binding's pattern of the API stands for.
///
/// # Errors
/// When it has more levels than core takes.
pub fn pattern_filter(kind: ExchangeKind, pattern: &str) -> Result<TopicFilter, AddressError> {
    match kind {
        ExchangeKind::Topic => spelling::pattern_to_filter(pattern.as_bytes()),
        _ => spelling::key_to_filter(pattern.as_bytes()),
    }
}

/// How the API spells a binding's key.
pub fn filter_pattern(kind: ExchangeKind, filter: &TopicFilter) -> String {
    if kind != ExchangeKind::Topic {
        let mut key = Vec::new();
        spelling::address_to_key(&filter.0, &mut key);
        return String::from_utf8_lossy(&key).into_owned();
    }
    let spelled = filter.as_str().split('/').map(|level| match level {
        "+" => "*".to_owned(),
        "#" => "#".to_owned(),
        level => {
            let mut key = Vec::new();
            spelling::address_to_key(level.as_bytes(), &mut key);
            String::from_utf8_lossy(&key).into_owned()
        }
    });
    spelled.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gateway_has_the_name_of_its_section_and_usable_defaults() {
        let config = Config::load(&sections(), None, std::iter::empty(), &[]).unwrap();
        let (listening, _) = make(&config).unwrap();
        let names: Vec<_> = listening
            .iter()
            .map(|(gateway, _)| gateway.name())
            .collect();
        let sections: Vec<_> = sections().iter().map(|section| section.name).collect();
        assert_eq!(names, sections);
        let mut tags: Vec<_> = listening.iter().map(|(gateway, _)| gateway.tag()).collect();
        tags.dedup();
        assert_eq!(tags.len(), names.len());
    }

    #[test]
    fn a_number_out_of_range_is_refused_with_key_range_and_source() {
        for (variable, value, said) in [
            ("MQTT__RECEIVE_MAX", "70000", "1 to 65535, not 70000"),
            ("MQTT__RECEIVE_MAX", "0", "1 to 65535, not 0"),
            ("MQTT__KEEP_ALIVE_S_MAX", "-1", "0 to 65535, not -1"),
            ("AMQP__CHANNEL_MAX", "99999", "1 to 2047, not 99999"),
            ("AMQP__HEARTBEAT_S", "70000", "0 to 65535, not 70000"),
        ] {
            let variable = format!("ANABRANCH_GATEWAY__{variable}");
            let environment = std::iter::once((variable.clone(), value.to_owned()));
            let config = Config::load(&sections(), None, environment, &[]).unwrap();
            let Err(error) = make(&config) else {
                panic!("{variable} = {value} was taken");
            };
            let error = error.to_string();
            assert!(error.contains(said) && error.contains(&variable), "{error}");
        }
    }

    #[test]
    fn the_topic_exchange_is_predeclared_as_one() {
        let found = predeclared()
            .into_iter()
            .find(|spec| &*spec.name == TOPIC_EXCHANGE)
            .unwrap();
        assert_eq!(found.kind, ExchangeKind::Topic);
    }

    #[test]
    fn patterns_come_back_as_they_were_typed() {
        for pattern in ["plant.*.temp", "#", "a.#.b", "a/b.c%2Fd", "", "ä"] {
            let filter = pattern_filter(ExchangeKind::Topic, pattern).unwrap();
            assert_eq!(
                filter_pattern(ExchangeKind::Topic, &filter),
                pattern,
                "{filter:?}"
            );
        }
    }
}
