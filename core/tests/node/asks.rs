//! What a test asks of a node in one line, and what it asks for.
//!
//! Owns: commands without anything special, and the node's answers to them.
//! Never: how the node works.
//! Next: `mod.rs`.

use super::*;
use anabranch_core::address::Address;
use anabranch_core::limits::StreamLimits;
use anabranch_core::message::Quality;
use anabranch_core::meta::policy::{AppliesTo, Policy, Settings};
use anabranch_core::port::{Question, ShardReply, ShardRequest, StreamStat};

/// The tag of [`Node::consume`].
pub const TAG: ConsumerTag = ConsumerTag(7);

impl Node {
    pub fn declare(
        &mut self,
        client: Client,
        name: &str,
        durable: bool,
    ) -> Result<Reply, ErrorKind> {
        self.declare_with(client, name, durable, StreamLimits::default())
    }

    pub fn declare_with(
        &mut self,
        client: Client,
        name: &str,
        durable: bool,
        limits: StreamLimits,
    ) -> Result<Reply, ErrorKind> {
        let declare = stream(name, durable, limits);
        let token = Token(9);
        self.reply(
            client,
            Command::DeclareStream {
                token,
                declare: Box::new(declare),
            },
        )
    }

    pub fn bind(&mut self, client: Client, queue: &str, filter: &str) {
        let binding = BindingSpec {
            exchange: Arc::from("topics"),
            to: BindTo::Stream(Arc::from(queue)),
            key: Address::default(),
            filter: filter.parse().unwrap(),
            retained: false,
            arguments: Vec::new(),
        };
        self.reply(
            client,
            Command::Bind {
                token: Token(9),
                binding: Box::new(binding),
            },
        )
        .unwrap();
    }

    /// Consumes as [`TAG`].
    pub fn consume(
        &mut self,
        client: Client,
        queue: &str,
        credit: u32,
    ) -> Result<Reply, ErrorKind> {
        self.consume_with(client, reader(queue, TAG, credit))
    }

    pub fn consume_with(&mut self, client: Client, consume: Consume) -> Result<Reply, ErrorKind> {
        let token = Token(9);
        self.reply(
            client,
            Command::Consume {
                token,
                consume: Box::new(consume),
            },
        )
    }

    pub fn cancel(&mut self, client: Client, consumer: ConsumerTag) {
        let token = Token(9);
        self.reply(client, Command::Cancel { token, consumer })
            .unwrap();
    }

    pub fn get(&mut self, client: Client, queue: &str, consumer: ConsumerTag) -> Option<Delivery> {
        let get = Command::Get {
            token: Token(9),
            stream: Arc::from(queue),
            consumer,
            presettled: false,
        };
        match self.reply(client, get) {
            Ok(Reply::Got { delivery, .. }) => delivery,
            other => panic!("unexpected {other:?}"),
        }
    }

    pub fn settle_one(
        &mut self,
        client: Client,
        consumer: ConsumerTag,
        offset: Offset,
        outcome: Outcome,
    ) {
        let settle = Command::Settle {
            consumer,
            first: offset,
            last: offset,
            outcome,
        };
        self.ask(client, settle);
    }

    /// What a client was given since the last time; it is acknowledged.
    pub fn take_all(&mut self, client: Client) -> Vec<String> {
        let mail = self.mail(client);
        for delivery in &mail.deliveries {
            self.settle_one(
                client,
                delivery.consumer,
                delivery.offset,
                Outcome::Accepted,
            );
        }
        bodies(&mail).iter().map(|body| (*body).into()).collect()
    }

    /// Other limits for a stream of a data shard, as its shard is asked for them.
    pub fn set_limits(&mut self, name: &str, limits: StreamLimits) {
        let stream = self.stat(name).stream;
        let (home, vhost) = {
            let meta = self.fabric.meta();
            let stream = meta.stream_by_id(stream).unwrap();
            (stream.shard, stream.vhost)
        };
        // A policy says the same, or the shard's next look at policies would undo it.
        let policy = Policy {
            name: name.into(),
            pattern: format!("^{name}$").into(),
            applies_to: AppliesTo::Queues,
            priority: 0,
            settings: Settings {
                mode: Some(limits.mode),
                ..Settings::default()
            },
        };
        let put = MetaCommand::PutPolicy { vhost, policy };
        self.fabric.apply(self.now.unix, &put).unwrap();
        let question = Question::SetLimits { stream, limits };
        let mut ask = vec![ShardRequest::Ask {
            ticket: u64::MAX,
            question: Box::new(question),
        }];
        let data = self.data.get_mut(&home).unwrap();
        data.shard
            .handle(self.now, WorkerId(0), &mut ask, &mut &data.journal);
        self.settle();
    }

    /// What the stream's shard tells of it: by its name in the vhost `/`.
    pub fn stat(&mut self, name: &str) -> StreamStat {
        match self.question(name, |stream| Question::Stat { stream }) {
            Ok(ShardReply::Stat(stat)) => *stat,
            other => panic!("unexpected {other:?}"),
        }
    }

    fn home(&self, name: &str) -> (StreamId, ShardId) {
        let meta = self.fabric.meta();
        let vhost = meta.vhost("/").unwrap().id;
        let found = meta.streams(vhost).find(|stream| &*stream.name == name);
        let found = found.expect("the stream is there");
        (found.id, found.shard)
    }

    /// Asks the shard of a stream from without, as a console would.
    pub fn question(
        &mut self,
        name: &str,
        question: impl FnOnce(StreamId) -> Question,
    ) -> Result<ShardReply, ErrorKind> {
        let (id, home) = self.home(name);
        let mut ask = vec![ShardRequest::Ask {
            ticket: 1,
            question: Box::new(question(id)),
        }];
        self.told.clear();
        match self.data.get_mut(&home) {
            Some(data) => data
                .shard
                .handle(self.now, OUTSIDE, &mut ask, &mut &data.journal),
            None => {
                // Asked from without, or the answer would stay inside the worker.
                let host = usize::from(home.host().0);
                self.workers[host].shard_requests(self.now, OUTSIDE, ask);
            }
        }
        self.settle();
        self.answer_outside()
            .expect("a settled node answers at once")
    }

    /// Asks the data shard of a stream without waiting for the answer.
    pub fn ask_outside(&mut self, name: &str, question: impl FnOnce(StreamId) -> Question) {
        let (id, home) = self.home(name);
        let mut ask = vec![ShardRequest::Ask {
            ticket: 1,
            question: Box::new(question(id)),
        }];
        let data = self.data.get_mut(&home).expect("it is durable");
        data.shard
            .handle(self.now, OUTSIDE, &mut ask, &mut &data.journal);
        self.settle();
    }

    /// The first answer that has come for [`Node::ask_outside`].
    pub fn answer_outside(&mut self) -> Option<Result<ShardReply, ErrorKind>> {
        let mut answers = self.told.drain(..).filter_map(|event| match event {
            ShardEvent::Reply { result, .. } => Some(result.map_err(|why| why.kind)),
            _ => None,
        });
        answers.next()
    }

    pub fn publish(
        &mut self,
        client: Client,
        exchange: &str,
        address: &str,
        body: &str,
        token: u64,
    ) {
        let message = Message {
            exchange: Bytes::copy_from_slice(exchange.as_bytes()),
            address: address.parse().unwrap(),
            body: Bytes::copy_from_slice(body.as_bytes()),
            quality: Quality::AtLeastOnce,
            publisher: client.id,
            ..Message::default()
        };
        self.ask(client, publishing(token, message));
    }

    pub fn session(&mut self, client: Client, name: &str, clean: bool, expiry_s: u32) -> bool {
        let session = SessionOpen {
            client_id: Arc::from(name),
            clean_start: clean,
            expiry_s,
            consumer: ConsumerTag(0),
            credit: 10,
            group_consumers: ConsumerTag(1),
            will: None,
        };
        self.session_with(client, session)
    }

    pub fn session_with(&mut self, client: Client, session: SessionOpen) -> bool {
        let token = Token(9);
        match self.reply(
            client,
            Command::OpenSession {
                token,
                session: Box::new(session),
            },
        ) {
            Ok(Reply::Session { present }) => present,
            other => panic!("unexpected {other:?}"),
        }
    }

    pub fn subscribe(&mut self, client: Client, name: &str) -> Vec<Result<Quality, ErrorKind>> {
        let one = SessionFilter {
            spec: filter(name),
            group: None,
            retained: SendRetained::Never,
        };
        self.subscribe_with(client, vec![one])
    }

    pub fn subscribe_with(
        &mut self,
        client: Client,
        filters: Vec<SessionFilter>,
    ) -> Vec<Result<Quality, ErrorKind>> {
        let token = Token(9);
        match self.reply(client, Command::Subscribe { token, filters }) {
            Ok(Reply::Subscribed(list)) => list
                .into_iter()
                .map(|one| one.map_err(|why| why.kind))
                .collect(),
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// A declaration without anything special.
pub fn stream(name: &str, durable: bool, limits: StreamLimits) -> StreamDeclare {
    StreamDeclare {
        name: Arc::from(name),
        key: name.parse().unwrap(),
        passive: false,
        durable,
        exclusive: false,
        auto_delete: limits.auto_delete,
        private: false,
        limits,
        arguments: Vec::new(),
    }
}

/// A consumer without anything special.
pub fn reader(queue: &str, consumer: ConsumerTag, credit: u32) -> Consume {
    Consume {
        consumer,
        stream: Arc::from(queue),
        private: false,
        exclusive: false,
        presettled: false,
        credit,
        priority: 0,
        no_local: false,
        replay: None,
    }
}

/// A filter without anything special.
pub fn filter(filter: &str) -> FilterSpec {
    FilterSpec {
        filter: filter.parse().unwrap(),
        quality: Quality::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        identifier: 0,
    }
}

/// A publish without anything special, which waits for room.
pub fn publishing(token: u64, message: Message) -> Command {
    Command::Publish {
        token: Token(token),
        mandatory: false,
        patient: true,
        once: None,
        later: None,
        message: Arc::new(message),
    }
}
