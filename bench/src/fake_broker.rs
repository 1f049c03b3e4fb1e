//! An MQTT 3.1.1 broker for tests that keeps to the standard as far as the rows need it, and breaks
//! it on purpose.
//!
//! Owns a listener and a thread per connection. Never leaves tests. Next: `flow.rs`, `staged.rs`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::mqtt::codec::{Packet, Version, decode};
use crate::mqtt::encode::{Reply, reply};

/// What goes wrong. Messages are counted from 0 over all publishers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// This message is not forwarded.
    Lose(u64),
    /// It is forwarded twice.
    Repeat(u64),
    /// It is forwarded after the one that follows it.
    Swap(u64),
    /// Every subscription is granted QoS 0.
    GrantQos0,
    /// No session outlives its connection.
    ForgetSessions,
}

#[derive(Default)]
struct Session {
    filter: String,
    /// Where its client is, while it is connected.
    stream: Option<TcpStream>,
    waiting: Vec<Vec<u8>>,
}

struct State {
    sessions: BTreeMap<String, Session>,
    retained: BTreeMap<String, Vec<u8>>,
    fault: Fault,
    count: u64,
    held: Option<(String, Vec<u8>)>,
}

/// Starts one on a free loopback port; its threads end with its connections.
pub fn start(fault: Fault) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let state = Arc::new(Mutex::new(State {
        sessions: BTreeMap::new(),
        retained: BTreeMap::new(),
        fault,
        count: 0,
        held: None,
    }));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = Arc::clone(&state);
            std::thread::spawn(move || serve(stream, &state));
        }
    });
    address
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) {
    let mut bytes = Vec::new();
    let mut part = [0; 65536];
    let (mut client, mut clean) = (String::new(), true);
    while let Ok(count @ 1..) = stream.read(&mut part) {
        bytes.extend_from_slice(&part[..count]);
        let mut used = 0;
        while let Ok(Some((packet, size))) = decode(Version::V311, &bytes[used..]) {
            let whole = &bytes[used..used + size];
            // A test that is over has closed its end, so a write may fail.
            let mut answer = |bytes: &[u8]| drop(stream.write_all(bytes));
            let mut acknowledge = |kind, packet_id| {
                let mut out = Vec::new();
                reply(&mut out, kind, packet_id);
                answer(&out);
            };
            let mut state = state.lock().unwrap();
            match packet {
                Packet::Other(1) => {
                    clean = whole[9] & 2 != 0;
                    client = text(&whole[12..]);
                    let known = state.sessions.contains_key(&client);
                    if clean {
                        state.sessions.remove(&client);
                    }
                    answer(&[0x20, 2, u8::from(known && !clean), 0]);
                    state.attach(&client, &stream);
                }
                Packet::Other(8) => {
                    let qos = whole[size - 1];
                    let granted = if state.fault == Fault::GrantQos0 {
                        0
                    } else {
                        qos
                    };
                    answer(&[0x90, 3, whole[2], whole[3], granted]);
                    let session = state.sessions.entry(client.clone()).or_default();
                    session.filter = text(&whole[4..]);
                    state.attach(&client, &stream);
                    state.give_retained(&client);
                }
                Packet::Publish { qos, packet_id, .. } => {
                    state.publish(whole);
                    match qos {
                        0 => {}
                        1 => acknowledge(Reply::Ack, packet_id),
                        _ => acknowledge(Reply::Rec, packet_id),
                    }
                }
                Packet::PubRec { packet_id, .. } => acknowledge(Reply::Rel, packet_id),
                Packet::PubRel { packet_id } => acknowledge(Reply::Comp, packet_id),
                Packet::Other(12) => answer(&[0xD0, 0]),
                Packet::Disconnect { .. } => {
                    let forgets = clean || state.fault == Fault::ForgetSessions;
                    match state.sessions.get_mut(&client) {
                        Some(session) if !forgets => session.stream = None,
                        _ => drop(state.sessions.remove(&client)),
                    }
                    return;
                }
                _ => {}
            }
            used += size;
        }
        bytes.drain(..used);
    }
}

/// A string behind its two bytes of length.
fn text(bytes: &[u8]) -> String {
    let length = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    String::from_utf8(bytes[2..2 + length].to_vec()).unwrap()
}

/// Filters end in `+` where they have a wildcard.
fn matches(filter: &str, topic: &str) -> bool {
    match filter.strip_suffix('+') {
        Some(head) => topic
            .strip_prefix(head)
            .is_some_and(|rest| !rest.contains('/')),
        None => filter == topic,
    }
}

impl State {
    fn attach(&mut self, client: &str, stream: &TcpStream) {
        if let Some(session) = self.sessions.get_mut(client) {
            let mut stream = stream.try_clone().unwrap();
            for packet in session.waiting.drain(..) {
                let _ = stream.write_all(&packet);
            }
            session.stream = Some(stream);
        }
    }

    fn give_retained(&mut self, client: &str) {
        let session = self.sessions.get_mut(client).unwrap();
        for (topic, packet) in &self.retained {
            if matches(&session.filter, topic) {
                session.give(packet);
            }
        }
    }

    fn publish(&mut self, packet: &[u8]) {
        // The length takes one byte below 128.
        let topic_at = 1
            + packet[1..]
                .iter()
                .position(|byte| byte & 0x80 == 0)
                .unwrap()
            + 1;
        let topic = text(&packet[topic_at..]);
        let number = self.count;
        self.count += 1;
        match self.fault {
            Fault::Lose(at) if at == number => {}
            Fault::Swap(at) if at == number => self.held = Some((topic, packet.to_vec())),
            Fault::Repeat(at) if at == number => {
                self.forward(&topic, packet);
                self.forward(&topic, packet);
            }
            _ => self.forward(&topic, packet),
        }
        if number > 0 && self.fault == Fault::Swap(number - 1) {
            let (topic, held) = self.held.take().unwrap();
            self.forward(&topic, &held);
        }
    }

    fn forward(&mut self, topic: &str, packet: &[u8]) {
        if packet[0] & 1 == 1 {
            self.retained.insert(topic.to_owned(), packet.to_vec());
        }
        let mut members = Vec::new();
        for session in self.sessions.values_mut() {
            match session.filter.strip_prefix("$share/bench/") {
                Some(filter) if matches(filter, topic) => members.push(session),
                None if matches(&session.filter, topic) => session.give(packet),
                Some(_) | None => {}
            }
        }
        if !members.is_empty() {
            let turn = self.count as usize % members.len();
            members[turn].give(packet);
        }
    }
}

impl Session {
    fn give(&mut self, packet: &[u8]) {
        match &mut self.stream {
            Some(stream) => drop(stream.write_all(packet)),
            None => self.waiting.push(packet.to_vec()),
        }
    }
}
