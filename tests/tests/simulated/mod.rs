//! Clients as values and the node they talk to, for conversations that are run twice and compared.
//!
//! A client notes what it is told as lines in named streams. Within a stream the order counts; between
//! streams (a consumer's deliveries, a channel's answers) it does not; streams whose lines are
//! independent of each other (acknowledgements of publishes) are sorted. What must hold at once (tags
//! are dense, windows are kept, nothing comes to a consumer that is gone) is asserted on the way.
//!
//! Owns: [`Story`], what a conversation is told with. Next: `device.rs`, `application.rs`, `node.rs`.

pub mod application;
pub mod device;
pub mod link;
pub mod node;

use std::collections::BTreeMap;

use anabranch_core::gateway::ClosedBy;
use anabranch_mqtt::codec::{Packet, Version};

use application::{Application, Talk};
use device::{Device, Hello};
use node::{Carriage, Node, Peer, Protocol};

/// What a client was told: lines by stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transcript(BTreeMap<String, Vec<String>>);

impl Transcript {
    /// Notes a line whose place in its stream counts.
    pub fn note(&mut self, stream: impl Into<String>, line: impl Into<String>) {
        self.0.entry(stream.into()).or_default().push(line.into());
    }

    /// Notes a line that is independent of the others in its stream.
    pub fn note_any_time(&mut self, stream: impl Into<String>, line: impl Into<String>) {
        let lines = self.0.entry(stream.into()).or_default();
        let line = line.into();
        let at = lines.partition_point(|known| *known <= line);
        lines.insert(at, line);
    }
}

/// A client of either kind.
pub enum Client {
    /// Speaks MQTT.
    Device(Device),
    /// Speaks AMQP.
    Application(Application),
}

impl Client {
    fn transcript(&mut self) -> &mut Transcript {
        match self {
            Client::Device(device) => &mut device.heard,
            Client::Application(application) => &mut application.heard,
        }
    }
}

impl Peer for Client {
    fn hear(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        match self {
            Client::Device(device) => device.hear(bytes),
            Client::Application(application) => application.hear(bytes),
        }
    }

    fn closed(&mut self, by: ClosedBy) {
        self.transcript().note("end", format!("{by:?}"));
    }
}

/// A conversation under way. Clients are named by the order in which they connected.
pub struct Story {
    /// The node.
    pub node: Node<Client>,
}

/// How a story ended.
pub struct Told {
    /// A transcript per connection.
    pub transcripts: Vec<Transcript>,
    /// Breaks of links that lost something.
    pub breaks: u64,
    /// Repeats that were dropped.
    pub repeats: u64,
}

impl Story {
    /// Tells a story to its end.
    pub fn tell(carriage: Carriage, conversation: fn(&mut Story)) -> Told {
        let node = Node::new(carriage);
        let mut story = Story { node };
        conversation(&mut story);
        story.node.run();
        let (breaks, repeats) = (story.node.breaks, story.node.repeats_dropped());
        let transcripts = story.node.peers();
        Told {
            transcripts: transcripts
                .map(|mut client| std::mem::take(client.transcript()))
                .collect(),
            breaks,
            repeats,
        }
    }

    /// A device connects and is answered.
    pub fn device(&mut self, worker: u16, hello: Hello) -> usize {
        let (device, bytes) = Device::new(hello);
        let line = self
            .node
            .connect(Protocol::Mqtt, worker, Client::Device(device));
        self.node.send(line, bytes);
        self.node.run();
        line
    }

    /// An application connects and opens channels 1 to `channels`.
    pub fn application(&mut self, worker: u16, channels: u16) -> usize {
        let (application, bytes) = Application::new(channels);
        let client = Client::Application(application);
        let line = self.node.connect(Protocol::Amqp, worker, client);
        self.node.send(line, bytes);
        self.node.run();
        line
    }

    /// A device's state.
    pub fn of_device(&mut self, line: usize) -> &mut Device {
        match self.node.peer(line) {
            Client::Device(device) => device,
            Client::Application(_) => panic!("line {line} is an application's"),
        }
    }

    /// An application's state.
    pub fn of_application(&mut self, line: usize) -> &mut Application {
        match self.node.peer(line) {
            Client::Application(application) => application,
            Client::Device(_) => panic!("line {line} is a device's"),
        }
    }

    /// A device sends packets in one piece; nothing else moves yet.
    pub fn send(&mut self, line: usize, packets: &[Packet]) {
        let bytes = self.of_device(line).say(packets);
        self.node.send(line, bytes);
    }

    /// An application says something on a channel in one piece; nothing else moves yet.
    pub fn talk(&mut self, line: usize, channel: u16, say: impl FnOnce(Talk<'_>) -> Talk<'_>) {
        let bytes = say(self.of_application(line).on(channel)).bytes();
        self.node.send(line, bytes);
    }

    /// A client's socket is gone, and everyone knows.
    pub fn vanish(&mut self, line: usize) {
        self.node.vanish(line);
        self.node.run();
    }

    /// Runs until all is quiet.
    pub fn run(&mut self) {
        self.node.run();
    }
}

/// A device's first words in version 5.0, with a clean start.
pub fn hello(client_id: &str) -> Hello {
    Hello {
        client_id: client_id.to_owned(),
        version: Version::V5,
        clean_start: true,
        expiry_s: 0,
        receive_max: None,
        acknowledges: true,
    }
}
