//! What commands do to the metadata.
//!
//! Owns what the tests of metadata share: commands, a state to begin with, who is reached; never a test. Read next:
//! [`exchanges`], [`streams`], [`lives`], [`persisted`].

mod exchanges;
mod lives;
mod persisted;
mod streams;

use super::*;
use crate::address::Address;
use crate::error::{ErrorKind, Refusal};
use crate::gateway::ExchangeKind;
use crate::id::{UnixMs, WorkerId};
use crate::limits::StreamLimits;
use crate::meta::arguments::Arguments;
use crate::properties::Value;
use bytes::Bytes;

const HERE: ConnectionId = ConnectionId(1);
const THERE: ConnectionId = ConnectionId(2);
const MAIN: VhostId = VhostId(1);

fn exchange(name: &str, kind: ExchangeKind) -> ExchangeSpec {
    ExchangeSpec {
        name: name.into(),
        kind,
        durable: true,
        auto_delete: false,
        internal: false,
        delays: false,
        alternate: None,
        arguments: Arguments::default(),
    }
}

fn queue(name: &str) -> StreamSpec {
    StreamSpec {
        name: name.into(),
        key: name.parse().unwrap(),
        durable: true,
        exclusive: false,
        auto_delete: false,
        limits: StreamLimits::default(),
        arguments: Arguments::default(),
    }
}

fn number(name: &'static str, value: i64, bits: u8) -> Arguments {
    let name = Bytes::from_static(name.as_bytes());
    Arguments::new(vec![(name, Value::Int(value, bits))]).unwrap()
}

fn create_vhost(name: &str) -> MetaCommand {
    MetaCommand::CreateVhost {
        name: name.into(),
        exchanges: vec![
            exchange("main.topic", ExchangeKind::Topic),
            exchange("main.direct", ExchangeKind::Direct),
        ],
        topic_exchange: "main.topic".into(),
    }
}

fn declare(stream: StreamSpec, by: ConnectionId) -> MetaCommand {
    MetaCommand::DeclareStream {
        vhost: MAIN,
        stream,
        by,
        volatile: ShardId::volatile(WorkerId(0)),
    }
}

fn declare_exchange(exchange: ExchangeSpec) -> MetaCommand {
    MetaCommand::DeclareExchange {
        vhost: MAIN,
        exchange,
    }
}

fn binding(exchange: &str, stream: &str, filter: &str) -> BindingChange {
    BindingChange {
        vhost: MAIN,
        exchange: exchange.into(),
        to: BindingEnd::Stream(stream.into()),
        key: None,
        filter: filter.parse().unwrap(),
        arguments: Arguments::default(),
        by: HERE,
    }
}

fn apply(meta: &mut Meta, command: MetaCommand) -> Result<MetaReply, Refusal> {
    // What is proposed is what is journalled: every command must survive that.
    let journalled = serde_json::to_vec(&command).unwrap();
    assert_eq!(
        serde_json::from_slice::<MetaCommand>(&journalled).unwrap(),
        command
    );
    meta.apply(UnixMs(1_000), &command)
}

#[track_caller]
fn done(meta: &mut Meta, command: MetaCommand) -> MetaReply {
    apply(meta, command).unwrap()
}

/// The refusal's kind, having checked that nothing but a counter could have changed.
#[track_caller]
fn refused(meta: &mut Meta, command: MetaCommand) -> Refusal {
    let before = meta.encode();
    let refusal = apply(meta, command).unwrap_err();
    assert_eq!(meta.encode(), before, "a refused command changed something");
    refusal
}

#[track_caller]
fn made(meta: &mut Meta, spec: StreamSpec) -> StreamId {
    match done(meta, declare(spec, HERE)) {
        MetaReply::Stream { id, active, .. } => {
            if !active {
                done(meta, MetaCommand::ActivateStream { stream: id });
            }
            id
        }
        other => panic!("{other:?}"),
    }
}

/// A vhost, two data shards.
fn fresh() -> Meta {
    let mut meta = Meta::default();
    done(&mut meta, MetaCommand::NodeStarted { incarnation: 1 });
    assert_eq!(done(&mut meta, create_vhost("/")), MetaReply::Vhost(MAIN));
    let slots = placement::Placement::even(&[ShardId(1), ShardId(2)]);
    done(&mut meta, MetaCommand::SetPlacement { slots });
    meta
}

/// Streams that a publish to this exchange and address would reach, by name, once per binding.
fn reached(meta: &Meta, exchange: &str, address: &str) -> Vec<String> {
    let address: Address = address.parse().unwrap();
    let Some(exchange) = meta.exchange(MAIN, exchange) else {
        return Vec::new();
    };
    let mut names = Vec::new();
    meta.table(exchange.id)
        .unwrap()
        .visit(&address, |target, _| {
            let Target::Stream(stream) = target else {
                panic!("leads to {target:?}");
            };
            names.push(meta.stream_by_id(stream).unwrap().name.to_string());
        });
    names.sort();
    names
}
