//! The protocols of this server: the only place that names their crates.
//!
//! A new protocol is one line that imports it and one line in [`all`].
//!
//! Owns: which gateways exist, where they listen and how, their names in WebSockets, how queues and keys are spelled in the API.
//! Never: what a gateway's configuration means.

use std::fmt::Display;
use std::sync::Arc;

use anabranch_amqp::{AmqpGateway, address as spelling, arguments, delay, names::PREDECLARED};
use anabranch_core::address::{Address, AddressError, TopicFilter};
use anabranch_core::gateway::{ExchangeKind, Gateway};
use anabranch_core::limits::StreamLimits;
use anabranch_core::meta::ExchangeSpec;
use anabranch_core::properties::Codecs;
use anabranch_driver::{GatewaySetup, ListenerSetup, Origins, Tls, TransportKind, WebSocketSetup};
use anabranch_mqtt::MqttGateway;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::config::{Config, ConfigError, GatewaySection, ListenerKeys};

/// The exchange that sessions publish to and are bound to.
pub const TOPIC_EXCHANGE: &str = "amq.topic";

/// The argument by which applications name an alternate exchange.
pub const ALTERNATE_ARGUMENT: &str = arguments::ALTERNATE;
/// The argument by which applications say how an exchange that delays routes what is due.
pub const DELAYED_ARGUMENT: &str = delay::TYPE_ARGUMENT;
/// The argument by which applications ask for last values with a binding.
pub const RETAINED_ARGUMENT: &str = arguments::RETAINED;

/// Every gateway.
fn all() -> Vec<Registered> {
    vec![
        register("mqtt", "0.0.0.0:1883", MQTT_IN_WEB, MqttGateway::new),
        register("amqp", "0.0.0.0:5672", AMQP_IN_WEB, AmqpGateway::new),
    ]
}

/// How a protocol is named in the opening of a WebSocket.
#[derive(Clone, Copy)]
struct InWeb {
    names: &'static [&'static str],
    /// Whether a client must offer one of them.
    required: bool,
}

/// [MQTT-6.0.0-3]; the second name is that of clients of before 3.1.1.
const MQTT_IN_WEB: InWeb = InWeb {
    names: &["mqtt", "mqttv3.1"],
    required: true,
};

/// No standard says how this version of AMQP is named; many clients offer nothing.
const AMQP_IN_WEB: InWeb = InWeb {
    names: &["amqp", "amqp0-9-1", "binary"],
    required: false,
};

type Make = Box<dyn Fn(Table, Codecs) -> Result<Arc<dyn Gateway>, String>>;

struct Registered {
    section: GatewaySection,
    in_web: InWeb,
    make: Make,
}

fn register<C, G, E>(
    name: &'static str,
    address: &'static str,
    in_web: InWeb,
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
        in_web,
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

/// The network side of a node, made and not started.
pub struct Made {
    /// Gateways with their listeners.
    pub gateways: Vec<GatewaySetup>,
    /// The conversions of all.
    pub codecs: Codecs,
    /// The certificates, when a listener needs them.
    pub tls: Option<Arc<Tls>>,
}

/// Makes all gateways as configured, each knowing the conversions of all, with those conversions.
///
/// # Errors
/// When a section does not fit, or certificates that a listener needs cannot be used.
pub fn make(config: &Config) -> Result<Made, ConfigError> {
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
    let mut tls = None;
    let mut gateways = Vec::new();
    for gateway in &registered {
        let listeners = config.listeners_of(gateway.section.name)?;
        gateways.push(GatewaySetup {
            gateway: make(gateway, codecs.clone())?,
            listeners: listeners_of(gateway, &listeners, config, &mut tls)?,
        });
    }
    Ok(Made {
        gateways,
        codecs,
        tls,
    })
}

/// A gateway's listeners; the certificates are read when the first one needs them.
fn listeners_of(
    gateway: &Registered,
    keys: &ListenerKeys,
    config: &Config,
    tls: &mut Option<Arc<Tls>>,
) -> Result<Vec<ListenerSetup>, ConfigError> {
    let websocket = Arc::new(WebSocketSetup {
        path: keys.ws_path.clone(),
        subprotocols: gateway.in_web.names,
        subprotocol_required: gateway.in_web.required,
        origins: match (&keys.ws_origins[..], config.settings.node.dev) {
            // Where everyone may enter, a page from anywhere in a browser here must not.
            ([], true) => Origins::Loopback,
            ([], false) => Origins::Any,
            (listed, _) => Origins::Listed(listed.to_vec()),
        },
        frame_bytes_max: config.settings.limits.ws_frame_bytes_max,
    });
    let mut listeners = Vec::new();
    for (kind, address) in &keys.addresses {
        let encrypted = matches!(kind, TransportKind::Tls | TransportKind::Wss);
        if encrypted && tls.is_none() {
            let who = ListenerKeys::key(gateway.section.name, *kind);
            *tls = Some(Arc::new(config.certificates(&who)?));
        }
        let in_web = matches!(kind, TransportKind::Ws | TransportKind::Wss);
        listeners.push(ListenerSetup {
            address: *address,
            tls: tls.clone().filter(|_| encrypted),
            websocket: in_web.then(|| websocket.clone()),
        });
    }
    Ok(listeners)
}

/// Exchanges that every vhost has from the start.
pub fn predeclared() -> Vec<ExchangeSpec> {
    let spec = |(name, kind): &(&str, ExchangeKind)| ExchangeSpec {
        name: Arc::from(*name),
        kind: *kind,
        durable: true,
        auto_delete: false,
        internal: false,
        delays: false,
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

/// How the API spells an address as a routing key.
pub fn address_key(address: &Address, origin_key: &Bytes) -> String {
    if !origin_key.is_empty() {
        return String::from_utf8_lossy(origin_key).into_owned();
    }
    let mut key = Vec::new();
    spelling::address_to_key(&address.0, &mut key);
    String::from_utf8_lossy(&key).into_owned()
}

/// What arguments of a queue ask, read as those of an application are, so that it finds the queue it would
/// have declared; and the arguments as they are kept.
///
/// # Errors
/// What is wrong with which argument.
pub fn queue_arguments(
    given: &arguments::Arguments,
    durable: bool,
    auto_delete: bool,
) -> Result<(StreamLimits, arguments::Arguments), String> {
    let flags = arguments::Flags {
        durable,
        exclusive: false,
        auto_delete,
    };
    let read = arguments::queue_of(given, flags).map_err(|error| error.text.into_owned())?;
    Ok((read.limits, read.arguments))
}

/// How the API names a group of shared subscriptions: as its members subscribe.
pub fn group_name(group: &str, filter: &TopicFilter) -> String {
    format!("$share/{group}/{filter}")
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
        let made = make(&config).unwrap();
        let gateways: Vec<_> = made.gateways.iter().map(|of| &of.gateway).collect();
        let names: Vec<_> = gateways.iter().map(|gateway| gateway.name()).collect();
        let sections: Vec<_> = sections().iter().map(|section| section.name).collect();
        assert_eq!(names, sections);
        let mut tags: Vec<_> = gateways.iter().map(|gateway| gateway.tag()).collect();
        tags.dedup();
        assert_eq!(tags.len(), names.len());
    }

    fn configured(variables: &[(&str, &str)]) -> Result<Made, ConfigError> {
        let environment = variables
            .iter()
            .map(|(name, value)| (format!("ANABRANCH_{name}"), (*value).to_owned()));
        let config = Config::load(&sections(), None, environment, &[]).unwrap();
        make(&config)
    }

    #[test]
    fn a_gateway_listens_in_plain_tcp_only_unless_told_otherwise() {
        let made = configured(&[]).unwrap();
        assert!(made.tls.is_none());
        for of in &made.gateways {
            assert_eq!(of.listeners.len(), 1);
            assert!(of.listeners[0].tls.is_none() && of.listeners[0].websocket.is_none());
        }
        let asked = [
            ("GATEWAY__MQTT__ADDRESS", ""),
            ("GATEWAY__MQTT__WS_ADDRESS", "127.0.0.1:8083"),
            ("GATEWAY__MQTT__WS_PATH", "/mqtt"),
            (
                "GATEWAY__MQTT__WS_ORIGINS",
                "https://a.example, https://b.example",
            ),
        ];
        let made = configured(&asked).unwrap();
        let [web] = &made.gateways[0].listeners[..] else {
            panic!("{:?}", made.gateways[0].listeners);
        };
        assert_eq!(web.address.port(), 8083);
        let setup = web.websocket.as_ref().unwrap();
        assert_eq!(setup.path.as_deref(), Some("/mqtt"));
        let listed = ["https://a.example", "https://b.example"].map(str::to_owned);
        assert_eq!(setup.origins, Origins::Listed(listed.to_vec()));
    }

    #[test]
    fn where_everyone_may_enter_a_strange_page_may_not() {
        let web = ("GATEWAY__AMQP__WS_ADDRESS", "127.0.0.1:0");
        for (dev, origins) in [("true", Origins::Loopback), ("false", Origins::Any)] {
            let made = configured(&[("NODE__DEV", dev), web]).unwrap();
            let setup = made.gateways[1].listeners[1].websocket.as_ref().unwrap();
            assert_eq!(setup.origins, origins);
        }
    }

    #[test]
    fn a_listener_that_needs_certificates_says_which_keys_to_write() {
        for key in ["tls_address", "wss_address"] {
            let name = format!("GATEWAY__AMQP__{}", key.to_ascii_uppercase());
            let said = |more: &[(&str, &str)]| {
                let variables = [&[(&*name, "127.0.0.1:0")], more].concat();
                let Err(error) = configured(&variables) else {
                    panic!("it was made");
                };
                error.to_string()
            };
            let text = said(&[]);
            let words = [
                &*format!("`gateway.amqp.{key}`"),
                "`tls.certificate`",
                "tls.key",
            ];
            assert!(words.iter().all(|word| text.contains(*word)), "{text}");
            let text = said(&[("TLS__CERTIFICATE", "/nonexistent/one.pem")]);
            assert!(text.contains("`tls.key`"), "{text}");
            let text = said(&[
                ("TLS__CERTIFICATE", "/nonexistent/one.pem"),
                ("TLS__KEY", "/nonexistent/two.pem"),
            ]);
            assert!(
                text.contains("[tls]") && text.contains("/nonexistent/one.pem"),
                "{text}"
            );
        }
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
