//! The encryption of one connection: bytes of the wire in, plain bytes out, and back.
//!
//! It keeps a record that has not arrived whole, and nothing else: an idle connection has no buffer.
//!
//! Owns: the session with its keys, the part of a record.
//! Never: touches the socket; knows what the plain bytes are.
//! Next: `wrapped.rs`, which does both.

use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The largest record: payload, what encryption adds at most, header.
pub(crate) const RECORD_BYTES_MAX: usize = 16_384 + 2_048 + 5;
/// The most that waits for the rest of a message of the handshake (a chain of certificates).
const PARTIAL_BYTES_MAX: usize = 64 * 1024;
/// What a record adds to its payload, generously.
const RECORD_EXTRA_BYTES: usize = 64;
const RECORD_PAYLOAD_BYTES: usize = 16_384;

/// Why an encrypted connection cannot go on.
pub(crate) type Fault = Cow<'static, str>;

/// One connection's encryption.
pub(crate) struct Secure {
    session: UnbufferedServerConnection,
    partial: Vec<u8>,
    ended: bool,
    /// A fault was found. The session is not asked again: the bytes it remembers are gone.
    failed: bool,
}

impl Secure {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Result<Secure, rustls::Error> {
        Ok(Secure {
            session: UnbufferedServerConnection::new(config)?,
            partial: Vec::new(),
            ended: false,
            failed: false,
        })
    }

    /// Whether the handshake is complete.
    pub(crate) fn is_open(&self) -> bool {
        !self.session.is_handshaking()
    }

    /// Whether the peer has said that it will send no more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Takes bytes of the wire: gives how many plain ones it put into `into`, and appends to `out` what
    /// the peer must be sent. `into` has room for all that was received and a record.
    ///
    /// # Errors
    /// When the peer broke the protocol; `out` tells it so.
    pub(crate) fn receive(
        &mut self,
        wire: &mut [u8],
        into: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<usize, Fault> {
        self.guard(|this| {
            if this.partial.is_empty() {
                let (used, plain) = this.work(wire, into, out)?;
                this.keep(wire.get(used..).unwrap_or_default().to_vec())?;
                return Ok(plain);
            }
            let mut partial = std::mem::take(&mut this.partial);
            partial.extend_from_slice(wire);
            let (used, plain) = this.work(&mut partial, into, out)?;
            partial.drain(..used.min(partial.len()));
            this.keep(partial)?;
            Ok(plain)
        })
    }

    /// Does something with the session, for the last time when it fails. A panic of the library would
    /// be a fault of it; it ends this connection and no other.
    fn guard<T>(&mut self, act: impl FnOnce(&mut Secure) -> Result<T, Fault>) -> Result<T, Fault> {
        if self.failed {
            return Err(Cow::Borrowed("TLS has failed before"));
        }
        let result = catch_unwind(AssertUnwindSafe(|| act(self)));
        let result = result.unwrap_or(Err(Cow::Borrowed("a bug of the broker")));
        self.failed = result.is_err();
        result
    }

    fn keep(&mut self, rest: Vec<u8>) -> Result<(), Fault> {
        if rest.len() > PARTIAL_BYTES_MAX {
            return Err(Cow::Borrowed("a TLS message is too long"));
        }
        // What follows the peer's end is nothing; an empty list has no allocation.
        if !self.ended && !rest.is_empty() {
            self.partial = rest;
        }
        Ok(())
    }

    /// Handles all whole records of `incoming`; gives how many bytes of it are done with, and how many
    /// plain ones there are.
    fn work(
        &mut self,
        incoming: &mut [u8],
        into: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, usize), Fault> {
        let (mut used, mut plain) = (0, 0);
        loop {
            let rest = incoming.get_mut(used..).unwrap_or_default();
            let UnbufferedStatus { discard, state } = self.session.process_tls_records(rest);
            used += discard;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(describe)?;
                        let end = plain + record.payload.len();
                        let room = into.get_mut(plain..end);
                        let room = room.ok_or(Cow::Borrowed("TLS records are too long"))?;
                        room.copy_from_slice(record.payload);
                        plain = end;
                        used += record.discard;
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    append(out, 0, |room| data.encode(room).map_err(needed_to_encode))?;
                }
                Ok(ConnectionState::TransmitTlsData(sent)) => sent.done(),
                Ok(ConnectionState::PeerClosed) => self.ended = true,
                Ok(
                    ConnectionState::BlockedHandshake
                    | ConnectionState::WriteTraffic(_)
                    | ConnectionState::Closed,
                ) => return Ok((used, plain)),
                // Early data is not offered; further states are none of this version.
                Ok(_) => return Err(Cow::Borrowed("TLS in a state that is not known")),
                Err(error) => {
                    let rest = incoming.get_mut(used..).unwrap_or_default();
                    self.alert(rest, out);
                    return Err(describe(error));
                }
            }
        }
    }

    /// Appends what the peer is told about its fault: at most one alert, which comes before anything else
    /// is looked at.
    fn alert(&mut self, incoming: &mut [u8], out: &mut Vec<u8>) {
        let state = self.session.process_tls_records(incoming).state;
        if let Ok(ConnectionState::EncodeTlsData(mut data)) = state {
            // It ends with the fault in any case.
            append(out, 0, |room| data.encode(room).map_err(needed_to_encode)).ok();
        }
    }

    /// Encrypts plain bytes, appending to `out`.
    ///
    /// # Errors
    /// When the handshake is not complete, or keys are used up.
    pub(crate) fn send(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        let records = plain.len() / RECORD_PAYLOAD_BYTES + 1;
        let expected = plain.len() + records * RECORD_EXTRA_BYTES;
        self.guard(|this| this.write(out, expected, |traffic, room| traffic.encrypt(plain, room)))
    }

    /// Appends to `out` that nothing more follows.
    ///
    /// # Errors
    /// As [`Secure::send`].
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        self.guard(|this| {
            this.write(out, RECORD_EXTRA_BYTES, |traffic, room| {
                traffic.queue_close_notify(room)
            })
        })
    }

    fn write(
        &mut self,
        out: &mut Vec<u8>,
        expected: usize,
        mut put: impl FnMut(&mut WriteTraffic<'_>, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> Result<(), Fault> {
        loop {
            // The same bytes as when it was last asked: a part of a handshake's message may lie in them.
            let UnbufferedStatus { discard, state } =
                self.session.process_tls_records(&mut self.partial);
            let done = match state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    append(out, expected, |room| {
                        put(&mut traffic, room).map_err(needed_to_encrypt)
                    })?;
                    true
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    append(out, 0, |room| data.encode(room).map_err(needed_to_encode))?;
                    false
                }
                Ok(ConnectionState::TransmitTlsData(sent)) => {
                    sent.done();
                    false
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.ended = true;
                    false
                }
                Ok(_) => return Err(Cow::Borrowed("TLS cannot send now")),
                Err(error) => return Err(describe(error)),
            };
            self.partial.drain(..discard.min(self.partial.len()));
            if done {
                return Ok(());
            }
        }
    }
}

type WriteTraffic<'a> = rustls::unbuffered::WriteTraffic<'a, rustls::server::ServerConnectionData>;

/// Lets `put` write behind what is in `out`, with more room when it says that it needs so much.
fn append(
    out: &mut Vec<u8>,
    expected: usize,
    mut put: impl FnMut(&mut [u8]) -> Result<usize, Result<usize, Fault>>,
) -> Result<(), Fault> {
    let start = out.len();
    let mut room = expected;
    loop {
        out.resize(start + room, 0);
        match put(&mut out[start..]) {
            Ok(count) => {
                out.truncate(start + count);
                return Ok(());
            }
            Err(Ok(needed)) if needed > room => room = needed,
            Err(Ok(_)) => {
                out.truncate(start);
                return Err(Cow::Borrowed("TLS needs more room than it says"));
            }
            Err(Err(fault)) => {
                out.truncate(start);
                return Err(fault);
            }
        }
    }
}

fn needed_to_encode(error: EncodeError) -> Result<usize, Fault> {
    match error {
        EncodeError::InsufficientSize(size) => Ok(size.required_size),
        EncodeError::AlreadyEncoded => Err(Cow::Borrowed("TLS encoded a message twice")),
    }
}

fn needed_to_encrypt(error: EncryptError) -> Result<usize, Fault> {
    match error {
        EncryptError::InsufficientSize(size) => Ok(size.required_size),
        EncryptError::EncryptExhausted => Err(Cow::Borrowed("the TLS keys are used up")),
    }
}

fn describe(error: rustls::Error) -> Fault {
    Cow::Owned(error.to_string())
}
