//! A broker for tests that forwards QoS 0 messages and breaks them on purpose.
//!
//! Owns a listener and a thread per connection. Never leaves tests. Next: `flow.rs`.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::mqtt::codec::{Packet, Version, decode};

/// What happens to the message of this number, counted from 0 over all publishers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// It is not forwarded.
    Lose(u64),
    /// It is forwarded twice.
    Repeat(u64),
    /// It is forwarded after the one that follows it.
    Swap(u64),
}

type Subscribers = HashMap<Vec<u8>, Vec<TcpStream>>;

struct State {
    subscribers: Subscribers,
    fault: Fault,
    count: u64,
    held: Option<Vec<u8>>,
}

/// Starts one on a free loopback port; its threads end with its connections.
pub fn start(fault: Fault) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let state = State {
        subscribers: HashMap::new(),
        fault,
        count: 0,
        held: None,
    };
    let state = Arc::new(Mutex::new(state));
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
    while let Ok(count @ 1..) = stream.read(&mut part) {
        bytes.extend_from_slice(&part[..count]);
        let mut used = 0;
        while let Ok(Some((packet, size))) = decode(Version::V311, &bytes[used..]) {
            let whole = &bytes[used..used + size];
            match packet {
                Packet::Other(1) => stream.write_all(&[0x20, 2, 0, 0]).unwrap(),
                Packet::Other(8) => {
                    // Two bytes of head, two of packet id, then the filter with its length.
                    let filter = whole[4..size - 1].to_vec();
                    let copy = stream.try_clone().unwrap();
                    state
                        .lock()
                        .unwrap()
                        .subscribers
                        .entry(filter)
                        .or_default()
                        .push(copy);
                    stream.write_all(&[0x90, 3, whole[2], whole[3], 0]).unwrap();
                }
                Packet::Publish { .. } => state.lock().unwrap().publish(whole),
                _ => {}
            }
            used += size;
        }
        bytes.drain(..used);
    }
}

impl State {
    fn publish(&mut self, packet: &[u8]) {
        let number = self.count;
        self.count += 1;
        match self.fault {
            Fault::Lose(at) if at == number => {}
            Fault::Swap(at) if at == number => self.held = Some(packet.to_vec()),
            Fault::Repeat(at) if at == number => {
                self.forward(packet);
                self.forward(packet);
            }
            _ => self.forward(packet),
        }
        if number > 0 && self.fault == Fault::Swap(number - 1) {
            let held = self.held.take().unwrap();
            self.forward(&held);
        }
    }

    /// The payload is 128 bytes, so the head has two bytes of length and the topic follows.
    fn forward(&mut self, packet: &[u8]) {
        let topic_end = 5 + usize::from(u16::from_be_bytes([packet[3], packet[4]]));
        for stream in self
            .subscribers
            .get_mut(&packet[3..topic_end])
            .into_iter()
            .flatten()
        {
            // A test that is over has closed its end.
            let _ = stream.write_all(packet);
        }
    }
}
