//! Handing out from a key-shared stream.
//!
//! First what waits, lane by lane, to readers that have room; then what nobody has looked at yet, which always lies
//! behind it: a message is read from the journal to learn its key, and once more if it had to wait for its turn.
//!
//! Owns: the loop over such a stream, the key of a message.
//! Never: the books (`stream/keyed.rs`), what handing out does (`deliver.rs`).

use super::deliver::ended;
use super::{Bodies, Fetched, NotYet, Place, Shard};
use crate::id::Now;
use crate::message::Message;
use crate::port::ConsumerKey;
use crate::properties::{Codecs, Value};
use crate::stream::Stream;
use crate::stream::{Entry, KeyHash, Keyed, Target};
use std::sync::Arc;

/// The header whose value is a message's key; without it the address is.
pub const KEY_HEADER: &[u8] = b"x-key";

/// The key of a message.
pub(crate) fn key_of(codecs: &Codecs, message: &Message) -> KeyHash {
    let address = || KeyHash::of(&message.address.0);
    if message.properties.is_empty() {
        return address();
    }
    let headers = codecs.neutral(message).headers;
    let Some((_, value)) = headers.into_iter().find(|(name, _)| name == KEY_HEADER) else {
        return address();
    };
    match value {
        Value::Text(bytes) | Value::ShortText(bytes) | Value::Binary(bytes) => KeyHash::of(&bytes),
        // A number is the key that its digits are, whatever width the publisher's library gave it.
        Value::Int(number, _) => KeyHash::of(number.to_string().as_bytes()),
        Value::UInt(number, _) => KeyHash::of(number.to_string().as_bytes()),
        Value::Float(number) => KeyHash::of(number.to_string().as_bytes()),
        Value::Double(number) => KeyHash::of(number.to_string().as_bytes()),
        Value::Decimal { scale, unscaled } => {
            KeyHash::of(format!("{unscaled}e-{scale}").as_bytes())
        }
        Value::Timestamp(seconds) => KeyHash::of(seconds.to_string().as_bytes()),
        Value::Void | Value::Bool(_) | Value::List(_) | Value::Table(_) => address(),
    }
}

/// An entry with its message.
type Read<B> = (Entry<B>, Arc<Message>);

impl<B: Place> Shard<B> {
    pub(super) fn dispatch_keyed(
        &mut self,
        now: Now,
        stream: &mut Stream<B>,
        bodies: &mut dyn Bodies<B>,
    ) {
        if self.read_held(stream, bodies).is_err() {
            return self.pause(stream.id);
        }
        stream.order_unseen();
        let attached = || stream.readers.iter().filter(|reader| reader.serves());
        let numbers = || attached().map(|reader| reader.number);
        if let Some(keyed) = stream.keyed.as_deref_mut()
            && !keyed.has_members(numbers())
        {
            keyed.set_members(numbers().collect());
        }
        // A key that went to another reader may find room there.
        while self.serve_waiting(now, stream, bodies) | self.look_ahead(now, stream, bodies) {}
    }

    /// Learns the keys of what was handed out before the stream was key-shared.
    fn read_held(
        &mut self,
        stream: &mut Stream<B>,
        bodies: &mut dyn Bodies<B>,
    ) -> Result<(), NotYet> {
        let unread = match stream.keyed.as_deref() {
            Some(keyed) => keyed.unread(),
            None => return Ok(()),
        };
        for (offset, _) in unread {
            let message = match stream.entry(offset) {
                Some(entry) => bodies.fetch(&entry.body).here()?,
                None => None,
            };
            // One that cannot be read has a key of its own as good as any.
            let key = message.map_or(KeyHash::of(&[]), |message| key_of(&self.codecs, &message));
            if let Some(keyed) = stream.keyed.as_deref_mut() {
                keyed.read(offset, key);
            }
        }
        Ok(())
    }

    /// Hands out what waits for readers that have room. Says whether a key went to another reader.
    fn serve_waiting(
        &mut self,
        now: Now,
        stream: &mut Stream<B>,
        bodies: &mut dyn Bodies<B>,
    ) -> bool {
        let mut moved = false;
        let mut place = 0;
        while let Some(reader) = stream.readers.get(place) {
            let first = stream
                .keyed
                .as_deref()
                .filter(|keyed| keyed.waiting() > 0 && reader.has_room())
                .and_then(|keyed| keyed.first_for(reader.number));
            let Some((offset, key)) = first else {
                place += 1;
                continue;
            };
            let (entry, message) = match self.look_at(now, stream, offset, bodies) {
                Ok(Some(seen)) => seen,
                Ok(None) => continue,
                Err(NotYet) => {
                    self.pause(stream.id);
                    place += 1;
                    continue;
                }
            };
            if self.may_take_at(stream, place, &entry, &message) {
                self.hand_out(stream, place, offset, &entry, message);
            } else {
                moved |= self.divert(stream, key, offset, &entry, &message);
            }
        }
        moved
    }

    /// Looks at what nobody has looked at, while somebody has room. Says as above.
    fn look_ahead(&mut self, now: Now, stream: &mut Stream<B>, bodies: &mut dyn Bodies<B>) -> bool {
        let mut moved = false;
        while stream.readers.any_room() {
            let Some(offset) = stream.next_unseen() else {
                break;
            };
            let (entry, message) = match self.look_at(now, stream, offset, bodies) {
                Ok(Some(seen)) => seen,
                Ok(None) => continue,
                Err(NotYet) => {
                    self.pause(stream.id);
                    break;
                }
            };
            let key = key_of(&self.codecs, &message);
            let place = stream.keyed.as_deref().and_then(|keyed| {
                match keyed.target(key) {
                    // Those of its key that wait go before it; one that came back waits itself.
                    Target::Reader(number)
                        if !keyed.has_waiting(key) && !keyed.is_paused(offset) =>
                    {
                        stream.readers.numbered(number)
                    }
                    Target::Reader(_) | Target::Nobody => None,
                }
            });
            let open = place.filter(|place| {
                let reader = stream.readers.get(*place);
                reader.is_some_and(|reader| reader.has_room())
            });
            match open {
                Some(place) if self.may_take_at(stream, place, &entry, &message) => {
                    if let Some(keyed) = stream.keyed.as_deref_mut() {
                        keyed.know(offset, key);
                    }
                    self.hand_out(stream, place, offset, &entry, message);
                }
                Some(_) => {
                    stream.park(offset, key);
                    moved |= self.divert(stream, key, offset, &entry, &message);
                }
                None => stream.park(offset, key),
            }
        }
        moved
    }

    fn may_take_at(
        &mut self,
        stream: &Stream<B>,
        place: usize,
        entry: &Entry<B>,
        message: &Message,
    ) -> bool {
        let reader = stream.readers.get(place);
        reader.is_some_and(|reader| self.may_take(reader, entry, message))
    }

    /// The message at an offset, unless it has ended or cannot be read: such a one is out of the way now.
    fn look_at(
        &mut self,
        now: Now,
        stream: &mut Stream<B>,
        offset: u64,
        bodies: &mut dyn Bodies<B>,
    ) -> Result<Option<Read<B>>, NotYet> {
        let entry = stream.entry(offset);
        let over = entry.as_ref().is_some_and(|entry| ended(entry, now.unix));
        // What ended before it could be handed out has its one chance.
        if over && (offset < stream.bounds.seen || !stream.is_queue()) {
            self.end_message(stream, offset);
            return Ok(None);
        }
        match entry.map(|entry| (bodies.fetch(&entry.body), entry)) {
            Some((Fetched::Here(message), entry)) => Ok(Some((entry, message))),
            Some((Fetched::Later, _)) => Err(NotYet),
            Some((Fetched::Lost, _)) | None => {
                stream.set_aside(offset);
                Ok(None)
            }
        }
    }

    /// The reader that a key goes to may not receive the first that waits of it: it goes to another that may, or
    /// waits until nobody holds the key. Says whether it went to another.
    fn divert(
        &mut self,
        stream: &mut Stream<B>,
        key: KeyHash,
        offset: u64,
        entry: &Entry<B>,
        message: &Message,
    ) -> bool {
        let held = stream
            .keyed
            .as_deref()
            .is_some_and(|keyed| keyed.is_held(key));
        let mut best: Option<u32> = None;
        let mut place = 0;
        while let Some(reader) = stream.readers.get(place).filter(|_| !held) {
            let number = reader.number;
            let claims = reader.serves()
                && best.is_none_or(|best| Keyed::claim(key, number) > Keyed::claim(key, best));
            if claims && self.may_take_at(stream, place, entry, message) {
                best = Some(number);
            }
            place += 1;
        }
        if best.is_none() && !held {
            self.nobody_may(stream, offset, entry, message);
        } else if let Some(keyed) = stream.keyed.as_deref_mut() {
            keyed.divert(key, best);
        }
        best.is_some()
    }

    /// The lowest offset whose key nobody but this consumer holds: for one who takes single messages.
    pub(super) fn next_free(
        &mut self,
        now: Now,
        stream: &mut Stream<B>,
        taker: ConsumerKey,
        bodies: &mut dyn Bodies<B>,
    ) -> Result<Option<u64>, NotYet> {
        self.read_held(stream, bodies)?;
        stream.order_unseen();
        let number = stream.readers.find(taker).map_or(0, |reader| reader.number);
        let keyed = stream.keyed.as_deref();
        let waiting = keyed.and_then(|keyed| keyed.first_free(number));
        while let Some(offset) = stream.next_unseen() {
            if waiting.is_some_and(|waiting| waiting < offset) {
                break;
            }
            let Some((_, message)) = self.look_at(now, stream, offset, bodies)? else {
                continue;
            };
            let key = key_of(&self.codecs, &message);
            stream.park(offset, key);
            let keyed = stream.keyed.as_deref();
            if keyed.is_some_and(|keyed| keyed.is_free_for(key, number)) {
                return Ok(Some(offset));
            }
        }
        Ok(waiting)
    }
}
