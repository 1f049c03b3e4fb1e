//! WebSocket (RFC 6455), the server's side: an opening in HTTP, then frames.
//!
//! A protocol's bytes travel in binary frames. Where frames end means nothing: their payloads are one
//! stream of bytes, unmasked where they were read and handed on as they come, so that no frame or message
//! is ever gathered and its length costs no memory.
//!
//! Owns: the two states of such a connection.
//! Never: touches the socket; knows what the payloads are.
//! Next: `opening.rs`, `frames.rs`.

mod frames;
mod opening;

use std::borrow::Cow;
use std::sync::Arc;

pub use opening::{Origins, WebSocketSetup};

use frames::{Frames, Opcode, put_close, put_header};
use opening::{Answer, answer};

/// Bytes that the request of an opening may have.
const REQUEST_BYTES_MAX: usize = 8 * 1024;
const REQUEST_END: &[u8] = b"\r\n\r\n";
/// What every request begins with that may be answered.
const REQUEST_START: &[u8] = b"GET ";

/// Codes of a close frame, RFC 6455 section 7.4.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseCode {
    Normal = 1000,
    ProtocolError = 1002,
    Unsupported = 1003,
    TooBig = 1009,
}

/// Why a peer cannot be listened to any longer.
type Fault = Cow<'static, str>;

/// A connection's WebSocket.
pub(crate) struct WebSocket {
    setup: Arc<WebSocketSetup>,
    state: State,
    /// The opening is done.
    opened: bool,
    /// We have sent a close frame.
    said: bool,
}

enum State {
    /// The request so far.
    Opening(Vec<u8>),
    Open(Frames),
    /// Nothing of the peer counts any more: it closed, or was told why it cannot go on.
    Closed,
}

impl WebSocket {
    pub(crate) fn new(setup: Arc<WebSocketSetup>) -> WebSocket {
        WebSocket {
            setup,
            state: State::Opening(Vec::new()),
            opened: false,
            said: false,
        }
    }

    /// Whether bytes may be sent.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Whether the opening was done, though it may be closed since.
    pub(crate) fn has_opened(&self) -> bool {
        self.opened
    }

    /// Whether the peer has closed.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Takes what was read, leaves the payloads at its beginning, and gives their length; appends to `out`
    /// what the peer must be sent at once.
    ///
    /// # Errors
    /// When the peer is refused or broke the protocol; `out` tells it so.
    pub(crate) fn receive(&mut self, bytes: &mut [u8], out: &mut Vec<u8>) -> Result<usize, Fault> {
        let result = match &mut self.state {
            State::Opening(_) => self.open(bytes, out),
            State::Open(frames) => frames.receive(bytes),
            State::Closed => Ok(0),
        };
        match (&mut self.state, result) {
            (State::Open(frames), Ok(count)) => {
                if let Some(code) = frames.closed() {
                    self.state = State::Closed;
                    self.say_goodbye(out, code);
                }
                Ok(count)
            }
            (State::Open(_), Err((code, why))) => {
                self.state = State::Closed;
                self.say_goodbye(out, Some(code as u16));
                Err(Cow::Borrowed(why))
            }
            (State::Opening(_) | State::Closed, Ok(count)) => Ok(count),
            (State::Opening(_) | State::Closed, Err((_, why))) => {
                self.state = State::Closed;
                Err(Cow::Borrowed(why))
            }
        }
    }

    /// Goes on with the opening; what follows the request are frames already.
    fn open(&mut self, bytes: &mut [u8], out: &mut Vec<u8>) -> Result<usize, frames::Broken> {
        let State::Opening(request) = &mut self.state else {
            return Ok(0);
        };
        let known = request.len();
        request.extend_from_slice(bytes);
        let begun = request.len().min(REQUEST_START.len());
        let wrong_start = request[..begun] != REQUEST_START[..begun];
        let from = known.saturating_sub(REQUEST_END.len() - 1);
        let end = request[from..]
            .windows(REQUEST_END.len())
            .position(|window| window == REQUEST_END)
            .map(|place| from + place + REQUEST_END.len())
            .filter(|end| *end <= REQUEST_BYTES_MAX);
        let whole = match end {
            Some(end) => &request[..end],
            None if wrong_start || request.len() > REQUEST_BYTES_MAX => {
                &request[..request.len().min(REQUEST_BYTES_MAX)]
            }
            None => return Ok(0),
        };
        match answer(&self.setup, whole) {
            Answer::Open(response) => {
                out.extend_from_slice(&response);
                let frames = bytes.len() - (request.len() - whole.len());
                let count = bytes.len() - frames;
                bytes.copy_within(frames.., 0);
                let mut open = Frames::new(self.setup.frame_bytes_max);
                let result = open.receive(&mut bytes[..count]);
                self.state = State::Open(open);
                self.opened = true;
                result
            }
            Answer::Refused { response, why } => {
                out.extend_from_slice(&response);
                Err((CloseCode::ProtocolError, why))
            }
        }
    }

    /// Whether a ping is to be answered.
    pub(crate) fn owes(&self) -> bool {
        matches!(&self.state, State::Open(frames) if frames.owes())
    }

    /// Appends the answer to the latest ping.
    pub(crate) fn put_owed(&mut self, out: &mut Vec<u8>) {
        if let State::Open(frames) = &mut self.state
            && let Some(payload) = frames.take_owed()
        {
            put_header(out, Opcode::Pong, payload.len());
            out.extend_from_slice(&payload);
        }
    }

    /// Appends our goodbye, once; the peer's answer is still read.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        if self.is_open() {
            self.say_goodbye(out, Some(CloseCode::Normal as u16));
        }
    }

    fn say_goodbye(&mut self, out: &mut Vec<u8>, code: Option<u16>) {
        if !std::mem::replace(&mut self.said, true) {
            put_close(out, code);
        }
    }
}

/// Appends the head of a frame with payload.
pub(crate) fn put_binary_header(out: &mut Vec<u8>, length: usize) {
    put_header(out, Opcode::Binary, length);
}
