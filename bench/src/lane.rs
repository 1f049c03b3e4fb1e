//! Publishers, their pace, and what is counted between them and the receivers.
//!
//! Owns windows and stamps. Never touches a socket or reads a clock. Next: `receiver.rs`, then
//! `engine.rs`, which moves the bytes.

use std::ops::Range;

use crate::histogram::Histogram;
use crate::link::{Confirmed, Sink};
use crate::pace::Pace;
use crate::receiver::Receiver;
use crate::row::SMALL_BYTES;
use crate::sequence::{STAMP_BYTES, Stamp};
use crate::window::Unconfirmed;
use crate::{amqp, mqtt};

const _: () = assert!(SMALL_BYTES >= STAMP_BYTES);

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
    Mqtt(mqtt::encode::PublishTemplate),
    /// AMQP basic.publish.
    Amqp(amqp::publish::PublishTemplate),
}

/// One publisher and those who hear it.
pub struct Lane {
    /// Number of its connection.
    pub link: usize,
    number: usize,
    template: Template,
    window: u64,
    /// Messages to be sent in all.
    quota: u64,
    pace: Option<Pace>,
    sent: u64,
    unconfirmed: Option<Unconfirmed>,
    receivers: Range<usize>,
}

/// What was counted so far.
#[derive(Default)]
pub struct Score {
    /// Messages received, by all receivers together.
    pub delivered: u64,
    /// Messages confirmed to all publishers.
    pub confirmed: u64,
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
            quota: u64::MAX,
            pace: None,
            sent: 0,
            unconfirmed,
            receivers,
        }
    }

    /// Sends one message each `interval_ns`, as far as the window lets it; the intended time is
    /// taken for the time of sending.
    pub fn paced(mut self, interval_ns: u64) -> Self {
        self.pace = Some(Pace::new(interval_ns));
        self
    }

    /// Sends at most `quota` messages.
    pub fn limited(mut self, quota: u64) -> Self {
        self.quota = quota;
        self
    }

    /// Raises that limit.
    pub fn extend(&mut self, messages: u64) {
        self.quota += messages;
    }

    /// Messages sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// How far the slowest receiver has come.
    #[inline]
    fn floor(&self, receivers: &[Receiver]) -> u64 {
        let heard = receivers[self.receivers.clone()].iter();
        heard
            .map(|receiver| receiver.floor(self.number))
            .min()
            .unwrap_or(self.sent)
    }

    /// How many messages may be sent now, when the broker takes at most `unconfirmed_max` that
    /// it has not confirmed.
    #[inline]
    pub fn room(&mut self, receivers: &[Receiver], unconfirmed_max: u64, now_ns: u64) -> u64 {
        let mut room = self
            .window
            .saturating_sub(self.sent - self.floor(receivers))
            .min(self.quota - self.sent);
        if let Some(unconfirmed) = &self.unconfirmed {
            let max = self.window.min(unconfirmed_max);
            room = room.min(max.saturating_sub(unconfirmed.count()));
        }
        match &mut self.pace {
            Some(pace) => room.min(pace.due(now_ns).saturating_sub(self.sent)),
            None => room,
        }
    }

    /// Whether all that is to be sent has been sent, received everywhere and confirmed.
    pub fn is_done(&self, receivers: &[Receiver]) -> bool {
        self.sent == self.quota && self.is_drained(receivers)
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
        let sent_ns = self
            .pace
            .as_ref()
            .map_or(now_ns, |pace| pace.intended_ns(self.sent, now_ns));
        if let Some(unconfirmed) = &mut self.unconfirmed {
            if !unconfirmed.has_place() {
                return false;
            }
            unconfirmed.sent(sent_ns);
        }
        let payload = match &self.template {
            Template::Mqtt(template) => {
                let packet_id = (self.sent % mqtt::client::PLACES) as u16 + 1;
                template.append(out, self.sent, packet_id)
            }
            Template::Amqp(template) => template.append(out, self.sent),
        };
        // A payload without room for a stamp is nothing to be received: it clears a topic.
        if payload.len() >= STAMP_BYTES {
            let stamp = Stamp {
                run,
                sender: self.number as u32,
                sequence: self.sent,
                sent_ns,
            };
            stamp.write(payload);
        }
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
        if let Some(stamp) = self.receivers[number].take(payload, self.run) {
            self.score.delivered += 1;
            if self.score.recording {
                self.score
                    .delivery
                    .record(self.now_ns.saturating_sub(stamp.sent_ns));
            }
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
                score.confirmed += 1;
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
    use crate::mqtt::codec::Version;
    use crate::mqtt::encode::PublishTemplate;

    fn lane(confirmed: bool) -> (Lane, Vec<Receiver>) {
        let template = PublishTemplate::new(Version::V311, "t", 1, &[0; SMALL_BYTES]);
        let lane = Lane::new(0, 0, Template::Mqtt(template), 10, confirmed, 0..2);
        (
            lane,
            vec![
                Receiver::new(0..1, 1, SMALL_BYTES),
                Receiver::new(0..1, 1, SMALL_BYTES),
            ],
        )
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

    fn payload(sender: u32, sequence: u64) -> [u8; SMALL_BYTES] {
        let mut payload = [0; SMALL_BYTES];
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
        assert_eq!(lane.room(&receivers, 3, 0), 3);
        assert_eq!(lane.room(&receivers, 100, 0), 10);
        (0..4).for_each(|_| assert!(lane.append(&mut out, 1, 0)));
        assert_eq!(lane.room(&receivers, 100, 0), 6);
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
        assert_eq!(lane.room(&receivers, 100, 0), 6);
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
        assert_eq!(lane.room(&receivers, 100, 0), 6);
        assert!(!lane.is_drained(&receivers));
        inbox(
            Role::Publisher(0),
            std::slice::from_mut(&mut lane),
            &mut receivers,
            &mut score,
        )
        .confirmed(Confirmed::Through(3));
        assert_eq!(lane.room(&receivers, 100, 0), 10);
        assert!(lane.is_drained(&receivers));
        assert_eq!(score.delivered, 8);
    }

    #[test]
    fn an_open_loop_sends_what_is_due_and_counts_from_the_intended_time() {
        let template = PublishTemplate::new(Version::V311, "t", 0, &[0; SMALL_BYTES]);
        let template = Template::Mqtt(template);
        let mut lane = Lane::new(0, 0, template, u64::MAX, false, 0..1).paced(100);
        let mut receivers = vec![Receiver::new(0..1, 1, SMALL_BYTES)];
        assert_eq!(lane.room(&receivers, 9, 1_000), 1);
        let mut out = Vec::new();
        assert!(lane.append(&mut out, 1, 1_000));
        assert_eq!(lane.room(&receivers, 9, 1_099), 0);
        // The loop wakes late: three are due, nothing has come back, and that holds nothing up.
        assert_eq!(lane.room(&receivers, 9, 1_350), 3);
        out.clear();
        assert!(lane.append(&mut out, 1, 1_350));
        let payload = &out[out.len() - SMALL_BYTES..];
        let stamp = receivers[0].take(payload, 1).unwrap();
        assert_eq!((stamp.sequence, stamp.sent_ns), (1, 1_100));
    }

    #[test]
    fn a_quota_ends_a_lane_that_nobody_hears() {
        let template = PublishTemplate::new(Version::V311, "t", 1, b"");
        let mut lane = Lane::new(0, 0, Template::Mqtt(template), 10, true, 0..0).limited(3);
        let mut out = Vec::new();
        assert_eq!(lane.room(&[], 100, 0), 3);
        (0..3).for_each(|_| assert!(lane.append(&mut out, 1, 0)));
        assert_eq!(lane.room(&[], 100, 0), 0);
        assert!(!lane.is_done(&[]));
        let mut score = Score::default();
        let mut lanes = [lane];
        inbox(Role::Publisher(0), &mut lanes, &mut [], &mut score).confirmed(Confirmed::Through(2));
        assert!(lanes[0].is_done(&[]));
        assert_eq!(score.confirmed, 3);
        lanes[0].extend(2);
        assert!(!lanes[0].is_done(&[]));
        assert_eq!(lanes[0].room(&[], 100, 0), 2);
    }
}
