//! Publishers, receivers and what is counted between them.
//!
//! Owns windows, stamps and checks. Never touches a socket or reads a clock. Next: `engine.rs`,
//! which moves the bytes.

use std::ops::Range;

use crate::histogram::Histogram;
use crate::link::{Confirmed, Sink};
use crate::sequence::{Faults, STAMP_BYTES, Stamp, Track};
use crate::window::Unconfirmed;
use crate::{amqp, mqtt};

/// Bytes of every message's payload.
pub const PAYLOAD_BYTES: usize = 128;
const _: () = assert!(PAYLOAD_BYTES >= STAMP_BYTES);

/// What a connection is for.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// Publishes for the lane of this number.
    Publisher(usize),
    /// Is the receiver of this number.
    Receiver(usize),
    /// Only exists.
    Idle,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Role::Publisher(lane) => write!(f, "publisher {lane}"),
            Role::Receiver(receiver) => write!(f, "receiver {receiver}"),
            Role::Idle => f.write_str("idle connection"),
        }
    }
}

/// How a publisher's messages look.
pub enum Template {
    /// MQTT PUBLISH.
    Mqtt(mqtt::codec::PublishTemplate),
    /// AMQP basic.publish.
    Amqp(amqp::codec::PublishTemplate),
}

/// One publisher and those who hear it.
pub struct Lane {
    /// Number of its connection.
    pub link: usize,
    number: usize,
    template: Template,
    window: u64,
    sent: u64,
    unconfirmed: Option<Unconfirmed>,
    receivers: Range<usize>,
}

/// What one subscriber or consumer has received.
pub struct Receiver {
    hears: Range<usize>,
    /// One per lane of the run.
    tracks: Vec<Track>,
    stray: u64,
}

impl Receiver {
    /// A receiver that should hear the lanes `hears`, of `lanes` in all.
    pub fn new(hears: Range<usize>, lanes: usize) -> Self {
        let tracks = (0..lanes).map(|_| Track::default()).collect();
        Self {
            hears,
            tracks,
            stray: 0,
        }
    }

    /// What went wrong so far, given all lanes of the run.
    pub fn faults(&self, lanes: &[Lane]) -> Faults {
        let mut faults = Faults {
            stray: self.stray,
            ..Faults::default()
        };
        for number in self.hears.clone() {
            faults.add(&self.tracks[number].faults(lanes[number].sent));
        }
        faults
    }
}

/// What was counted so far.
#[derive(Default)]
pub struct Score {
    /// Messages received, by all receivers together.
    pub delivered: u64,
    /// Whether latencies are recorded now.
    pub recording: bool,
    /// From sending to receiving.
    pub delivery: Histogram,
    /// From sending to the broker's confirmation.
    pub confirmation: Histogram,
}

impl Lane {
    /// The lane of this number, published on connection `link`, heard by `receivers`, with at
    /// most `window` messages in flight, confirmed by the broker or not.
    pub fn new(
        number: usize,
        link: usize,
        template: Template,
        window: u64,
        confirmed: bool,
        receivers: Range<usize>,
    ) -> Self {
        let unconfirmed = confirmed.then(Unconfirmed::default);
        Self {
            link,
            number,
            template,
            window,
            sent: 0,
            unconfirmed,
            receivers,
        }
    }

    /// How far the slowest receiver has come.
    #[inline]
    fn floor(&self, receivers: &[Receiver]) -> u64 {
        let heard = receivers[self.receivers.clone()].iter();
        heard
            .map(|receiver| receiver.tracks[self.number].next())
            .min()
            .unwrap_or(self.sent)
    }

    /// How many messages may be sent now, when the broker takes at most `unconfirmed_max` that
    /// it has not confirmed.
    #[inline]
    pub fn room(&self, receivers: &[Receiver], unconfirmed_max: u64) -> u64 {
        let room = self
            .window
            .saturating_sub(self.sent - self.floor(receivers));
        match &self.unconfirmed {
            Some(unconfirmed) => room.min(
                self.window
                    .min(unconfirmed_max)
                    .saturating_sub(unconfirmed.count()),
            ),
            None => room,
        }
    }

    /// Whether all that was sent has been received everywhere and confirmed.
    pub fn is_drained(&self, receivers: &[Receiver]) -> bool {
        self.floor(receivers) >= self.sent
            && self
                .unconfirmed
                .as_ref()
                .is_none_or(|unconfirmed| unconfirmed.count() == 0)
    }

    /// Appends the next message; false when its place is still taken.
    #[inline]
    pub fn append(&mut self, out: &mut Vec<u8>, run: u32, now_ns: u64) -> bool {
        if let Some(unconfirmed) = &mut self.unconfirmed {
            if !unconfirmed.has_place() {
                return false;
            }
            unconfirmed.sent(now_ns);
        }
        let payload = match &self.template {
            Template::Mqtt(template) => {
                template.append(out, (self.sent % mqtt::client::PLACES) as u16 + 1)
            }
            Template::Amqp(template) => template.append(out),
        };
        let sender = self.number as u32;
        Stamp {
            run,
            sender,
            sequence: self.sent,
            sent_ns: now_ns,
        }
        .write(payload);
        self.sent += 1;
        true
    }
}

/// Where the messages of one read go.
pub struct Inbox<'e> {
    /// Whose connection was read.
    pub role: Role,
    /// The run's mark.
    pub run: u32,
    /// When it was read, nanoseconds since the run began.
    pub now_ns: u64,
    /// All lanes of the run.
    pub lanes: &'e mut [Lane],
    /// All receivers of the run.
    pub receivers: &'e mut [Receiver],
    /// Where to count.
    pub score: &'e mut Score,
}

impl Sink for Inbox<'_> {
    #[inline]
    fn delivered(&mut self, payload: &[u8]) {
        let Role::Receiver(number) = self.role else {
            return;
        };
        let receiver = &mut self.receivers[number];
        match Stamp::read(payload) {
            Some(stamp)
                if stamp.run == self.run
                    && payload.len() == PAYLOAD_BYTES
                    && receiver.hears.contains(&(stamp.sender as usize)) =>
            {
                receiver.tracks[stamp.sender as usize].see(stamp.sequence);
                self.score.delivered += 1;
                if self.score.recording {
                    self.score
                        .delivery
                        .record(self.now_ns.saturating_sub(stamp.sent_ns));
                }
            }
            _ => receiver.stray += 1,
        }
    }

    #[inline]
    fn confirmed(&mut self, what: Confirmed) {
        let Role::Publisher(number) = self.role else {
            return;
        };
        if let Some(unconfirmed) = &mut self.lanes[number].unconfirmed {
            let score = &mut *self.score;
            unconfirmed.confirm(what, |sent_ns| {
                if score.recording {
                    score
                        .confirmation
                        .record(self.now_ns.saturating_sub(sent_ns));
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::codec::{PublishTemplate, Version};

    fn lane(confirmed: bool) -> (Lane, Vec<Receiver>) {
        let template = PublishTemplate::new(Version::V311, "t", 1, &[0; PAYLOAD_BYTES]);
        let lane = Lane::new(0, 0, Template::Mqtt(template), 10, confirmed, 0..2);
        (lane, vec![Receiver::new(0..1, 1), Receiver::new(0..1, 1)])
    }

    fn inbox<'e>(
        role: Role,
        lanes: &'e mut [Lane],
        receivers: &'e mut [Receiver],
        score: &'e mut Score,
    ) -> Inbox<'e> {
        Inbox {
            role,
            run: 1,
            now_ns: 9,
            lanes,
            receivers,
            score,
        }
    }

    fn payload(sender: u32, sequence: u64) -> [u8; PAYLOAD_BYTES] {
        let mut payload = [0; PAYLOAD_BYTES];
        Stamp {
            run: 1,
            sender,
            sequence,
            sent_ns: 4,
        }
        .write(&mut payload);
        payload
    }

    #[test]
    fn the_slowest_receiver_and_the_broker_hold_the_window() {
        let (mut lane, mut receivers) = lane(true);
        let mut out = Vec::new();
        assert_eq!(lane.room(&receivers, 3), 3);
        assert_eq!(lane.room(&receivers, 100), 10);
        (0..4).for_each(|_| assert!(lane.append(&mut out, 1, 0)));
        assert_eq!(lane.room(&receivers, 100), 6);
        let mut score = Score::default();
        for sequence in 0..4 {
            inbox(
                Role::Receiver(0),
                std::slice::from_mut(&mut lane),
                &mut receivers,
                &mut score,
            )
            .delivered(&payload(0, sequence));
        }
        assert_eq!(lane.room(&receivers, 100), 6);
        for sequence in 0..4 {
            inbox(
                Role::Receiver(1),
                std::slice::from_mut(&mut lane),
                &mut receivers,
                &mut score,
            )
            .delivered(&payload(0, sequence));
        }
        // Received everywhere, but the broker has confirmed none.
        assert_eq!(lane.room(&receivers, 100), 6);
        assert!(!lane.is_drained(&receivers));
        inbox(
            Role::Publisher(0),
            std::slice::from_mut(&mut lane),
            &mut receivers,
            &mut score,
        )
        .confirmed(Confirmed::Through(3));
        assert_eq!(lane.room(&receivers, 100), 10);
        assert!(lane.is_drained(&receivers));
        assert_eq!(score.delivered, 8);
    }

    #[test]
    fn what_was_not_addressed_to_a_receiver_is_astray() {
        let (mut lane, mut receivers) = lane(false);
        let mut score = Score::default();
        let mut inbox = inbox(
            Role::Receiver(0),
            std::slice::from_mut(&mut lane),
            &mut receivers,
            &mut score,
        );
        inbox.delivered(&payload(1, 0));
        inbox.delivered(b"short");
        inbox.run = 2;
        inbox.delivered(&payload(0, 0));
        assert_eq!(
            receivers[0].faults(&[lane]),
            Faults {
                stray: 3,
                ..Faults::default()
            }
        );
        assert_eq!(score.delivered, 0);
    }
}
