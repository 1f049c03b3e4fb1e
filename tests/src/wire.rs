//! A raw socket for what no client library would send.
//!
//! Never: waits past its deadline, or knows a protocol.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long an answer or a close may take.
const LIMIT: Duration = Duration::from_secs(10);

/// One connection of raw bytes.
pub struct Wire {
    stream: TcpStream,
}

impl Wire {
    /// Connects.
    pub fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect_timeout(&to, LIMIT).expect("the port is open");
        stream.set_nodelay(true).unwrap();
        Self { stream }
    }

    /// Sends `bytes`; true when the peer still took them.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.set_write_timeout(Some(LIMIT)).unwrap();
        self.stream.write_all(bytes).is_ok()
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// When the peer closes or says less in time: what happened.
    pub fn receive(&mut self, count: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; count];
        self.stream.set_read_timeout(Some(LIMIT)).unwrap();
        match self.stream.read_exact(&mut bytes) {
            Ok(()) => Ok(bytes),
            Err(error) => Err(format!("{count} bytes wanted: {error}")),
        }
    }

    /// All that comes until the peer closes.
    ///
    /// # Errors
    /// When it does not close in time: what came.
    pub fn receive_to_end(&mut self) -> Result<Vec<u8>, String> {
        let deadline = Instant::now() + LIMIT;
        let mut received = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("not closed after {LIMIT:?}; got {received:02x?}"));
            }
            self.stream.set_read_timeout(Some(left)).unwrap();
            match self.stream.read(&mut chunk) {
                Ok(0) => return Ok(received),
                Ok(count) => received.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(received),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(format!("{error}; got {received:02x?}")),
            }
        }
    }
}

/// Bytes from hex digits; blanks and line breaks are for the reader.
///
/// # Panics
/// When `text` holds anything else.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter(|byte| !byte.is_ascii_whitespace())
        .map(|byte| char::from(byte).to_digit(16).expect("a hex digit") as u8)
        .collect();
    assert!(digits.len().is_multiple_of(2), "whole bytes: {text}");
    digits
        .chunks_exact(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}
