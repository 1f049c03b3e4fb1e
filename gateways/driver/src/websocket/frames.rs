//! Frames, read in place: what is handed on are their payloads, joined.
//!
//! Owns: where in a frame the stream stands, the rules about frames (RFC 6455 section 5).
//! Never: holds payload back, but that of a control frame (125 bytes at most).

use super::CloseCode;

/// Longest payload of a control frame.
const CONTROL_BYTES_MAX: u64 = 125;
/// Longest head of a frame: two bytes, eight of length, four of mask.
const HEADER_BYTES_MAX: usize = 14;
const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

/// What kind a frame is, by the number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opcode {
    Continuation = 0x0,
    Text = 0x1,
    Binary = 0x2,
    Close = 0x8,
    Ping = 0x9,
    Pong = 0xA,
}

impl Opcode {
    fn read(number: u8) -> Option<Opcode> {
        Some(match number {
            0x0 => Opcode::Continuation,
            0x1 => Opcode::Text,
            0x2 => Opcode::Binary,
            0x8 => Opcode::Close,
            0x9 => Opcode::Ping,
            0xA => Opcode::Pong,
            _ => return None,
        })
    }

    fn is_control(self) -> bool {
        matches!(self, Opcode::Close | Opcode::Ping | Opcode::Pong)
    }
}

/// What a peer did wrong: the code it is told, and a sentence.
pub(super) type Broken = (CloseCode, &'static str);

/// The frames of one connection, in one direction.
pub(super) struct Frames {
    frame_bytes_max: u64,
    /// The head of the next frame, as far as it is there.
    header: [u8; HEADER_BYTES_MAX],
    header_bytes: usize,
    /// The frame whose payload is being read.
    current: Option<Frame>,
    /// A message is under way whose last frame has not come.
    unfinished: bool,
    /// Payload of the control frame that is being read.
    control: Vec<u8>,
    /// What the latest ping said, until it is answered.
    owed: Option<Vec<u8>>,
    /// The peer's close frame came, with this code.
    closed: Option<Option<u16>>,
}

struct Frame {
    opcode: Opcode,
    mask: [u8; 4],
    left: u64,
}

impl Frames {
    pub(super) fn new(frame_bytes_max: u64) -> Frames {
        Frames {
            frame_bytes_max,
            header: [0; HEADER_BYTES_MAX],
            header_bytes: 0,
            current: None,
            unfinished: false,
            control: Vec::new(),
            owed: None,
            closed: None,
        }
    }

    /// The code of the peer's close frame, once it came.
    pub(super) fn closed(&self) -> Option<Option<u16>> {
        self.closed
    }

    /// Whether a ping is to be answered.
    pub(super) fn owes(&self) -> bool {
        self.owed.is_some()
    }

    /// What the latest ping said. One that came before it and was not answered yet need not be.
    pub(super) fn take_owed(&mut self) -> Option<Vec<u8>> {
        self.owed.take()
    }

    /// Moves the payloads in `bytes` to its beginning, unmasked, and gives their length.
    pub(super) fn receive(&mut self, bytes: &mut [u8]) -> Result<usize, Broken> {
        let (mut read, mut written) = (0, 0);
        while read < bytes.len() && self.closed.is_none() {
            let Some(frame) = &mut self.current else {
                self.header[self.header_bytes] = bytes[read];
                self.header_bytes += 1;
                read += 1;
                self.begin()?;
                continue;
            };
            let here = bytes.len() - read;
            let count = usize::try_from(frame.left).map_or(here, |left| left.min(here));
            let part = read..read + count;
            frame.left -= count as u64;
            read += count;
            if frame.opcode.is_control() {
                let payload = &mut bytes[part];
                unmask(payload, &mut frame.mask);
                self.control.extend_from_slice(payload);
            } else {
                bytes.copy_within(part, written);
                unmask(&mut bytes[written..written + count], &mut frame.mask);
                written += count;
            }
            self.end()?;
        }
        Ok(written)
    }

    /// Begins a frame when its head is whole.
    fn begin(&mut self) -> Result<(), Broken> {
        let [first, second, ..] = self.header;
        if self.header_bytes < 2 {
            return Ok(());
        }
        let length_bytes = match second & !MASKED {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if self.header_bytes == 2 {
            self.check_kind(first, second)?;
        }
        let mask_at = 2 + length_bytes;
        if self.header_bytes < mask_at + 4 {
            return Ok(());
        }
        let mut length = u64::from(second & !MASKED);
        if length_bytes > 0 {
            let digits = &self.header[2..mask_at];
            length = digits
                .iter()
                .fold(0, |sum, digit| sum << 8 | u64::from(*digit));
            let shorter = if length_bytes == 2 {
                length < 126
            } else {
                length <= 0xFFFF
            };
            if shorter || length >> 63 != 0 {
                return Err((
                    CloseCode::ProtocolError,
                    "a frame's length is badly written",
                ));
            }
        }
        if length > self.frame_bytes_max {
            return Err((CloseCode::TooBig, "a WebSocket frame is too long"));
        }
        let Some(opcode) = Opcode::read(first & 0x0F) else {
            return Err((CloseCode::ProtocolError, "a frame of an unknown kind"));
        };
        let mut mask = [0; 4];
        mask.copy_from_slice(&self.header[mask_at..mask_at + 4]);
        self.header_bytes = 0;
        if !opcode.is_control() {
            self.unfinished = first & FIN == 0;
        }
        self.current = Some(Frame {
            opcode,
            mask,
            left: length,
        });
        self.end()
    }

    /// Checks what the first two bytes of a frame say.
    fn check_kind(&self, first: u8, second: u8) -> Result<(), Broken> {
        let wrong = |why| Err((CloseCode::ProtocolError, why));
        if first & RESERVED != 0 {
            return wrong("a frame uses an extension that was not agreed on");
        }
        if second & MASKED == 0 {
            return wrong("a frame is not masked");
        }
        match Opcode::read(first & 0x0F) {
            None => wrong("a frame of an unknown kind"),
            // [MQTT-6.0.0-1]; no protocol here is made of text.
            Some(Opcode::Text) => Err((
                CloseCode::Unsupported,
                "a frame of text; only binary ones are taken",
            )),
            Some(Opcode::Continuation) if !self.unfinished => {
                wrong("a frame continues a message that is not under way")
            }
            Some(Opcode::Binary) if self.unfinished => {
                wrong("a message begins before the one under way has ended")
            }
            Some(Opcode::Continuation | Opcode::Binary) => Ok(()),
            Some(Opcode::Close | Opcode::Ping | Opcode::Pong) => {
                let long = u64::from(second & !MASKED) > CONTROL_BYTES_MAX;
                if long || first & FIN == 0 {
                    return wrong("a control frame is too long or not in one piece");
                }
                Ok(())
            }
        }
    }

    /// Ends the frame under way when its payload is whole.
    fn end(&mut self) -> Result<(), Broken> {
        let Some(frame) = self.current.take_if(|frame| frame.left == 0) else {
            return Ok(());
        };
        match frame.opcode {
            Opcode::Continuation | Opcode::Text | Opcode::Binary => return Ok(()),
            Opcode::Pong => self.control = Vec::new(),
            Opcode::Ping => self.owed = Some(std::mem::take(&mut self.control)),
            Opcode::Close => {
                let payload = std::mem::take(&mut self.control);
                self.closed = Some(close_code(&payload)?);
            }
        }
        Ok(())
    }
}

fn close_code(payload: &[u8]) -> Result<Option<u16>, Broken> {
    let wrong = Err((CloseCode::ProtocolError, "a close frame is badly written"));
    let (code, reason) = match payload {
        [] => return Ok(None),
        [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
        [_] => return wrong,
    };
    // RFC 6455 section 7.4: what may be sent, and what is kept for libraries and applications.
    let known = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
    if !known || std::str::from_utf8(reason).is_err() {
        return wrong;
    }
    Ok(Some(code))
}

/// Unmasks a part of a payload, and turns the mask so that it fits the next part.
fn unmask(payload: &mut [u8], mask: &mut [u8; 4]) {
    let mut wide = [0; 8];
    wide[..4].copy_from_slice(mask);
    wide[4..].copy_from_slice(mask);
    let wide = u64::from_ne_bytes(wide);
    let mut chunks = payload.chunks_exact_mut(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        let word = u64::from_ne_bytes(word) ^ wide;
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    let rest = chunks.into_remainder();
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    mask.rotate_left(rest.len() % 4);
}

/// Appends the head of a frame that is whole and, as a server's are, not masked.
pub(crate) fn put_header(out: &mut Vec<u8>, opcode: Opcode, length: usize) {
    out.push(FIN | opcode as u8);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short), _) if short < 126 => out.push(short),
        (_, Ok(middle)) => {
            out.push(126);
            out.extend_from_slice(&middle.to_be_bytes());
        }
        (_, Err(_)) => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
}

/// Appends a close frame.
pub(super) fn put_close(out: &mut Vec<u8>, code: Option<u16>) {
    match code {
        Some(code) => {
            put_header(out, Opcode::Close, 2);
            out.extend_from_slice(&code.to_be_bytes());
        }
        None => put_header(out, Opcode::Close, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASK: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

    /// A client's frame.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_header(&mut bytes, Opcode::Continuation, payload.len());
        bytes[0] = first;
        bytes[1] |= MASKED;
        bytes.extend_from_slice(&MASK);
        let masked = payload.iter().zip(MASK.iter().cycle());
        bytes.extend(masked.map(|(byte, mask)| byte ^ mask));
        bytes
    }

    /// Feeds in pieces of `size`.
    fn feed(frames: &mut Frames, bytes: &[u8], size: usize) -> Result<Vec<u8>, Broken> {
        let mut payload = Vec::new();
        for piece in bytes.chunks(size) {
            let mut piece = piece.to_vec();
            let count = frames.receive(&mut piece)?;
            payload.extend_from_slice(&piece[..count]);
        }
        Ok(payload)
    }

    #[test]
    fn payloads_are_joined_however_the_frames_arrive() {
        // [MQTT-6.0.0-2]: several frames for a packet, several packets in a frame.
        let long: Vec<u8> = (0..70_000_u32).map(|number| number as u8).collect();
        let mut bytes = frame(0x02, b"ab");
        bytes.extend(frame(0x89, b"are you there"));
        bytes.extend(frame(0x00, &long[..300]));
        bytes.extend(frame(0x80, b""));
        bytes.extend(frame(0x82, &long));
        bytes.extend(frame(0x8A, b"unasked"));
        let wanted = [b"ab", &long[..300], &long].concat();
        for size in [1, 2, 3, 7, 13, 1000, bytes.len()] {
            let mut frames = Frames::new(100_000);
            assert!(feed(&mut frames, &bytes, size).unwrap() == wanted, "{size}");
            assert_eq!(frames.take_owed().as_deref(), Some(&b"are you there"[..]));
            assert!(!frames.owes() && frames.closed().is_none());
        }
    }

    #[test]
    fn nothing_follows_a_close() {
        for (payload, code) in [
            (&b""[..], None),
            (b"\x03\xe8", Some(1000)),
            (b"\x0b\xb8bye", Some(3000)),
        ] {
            let mut frames = Frames::new(1000);
            let bytes = [
                frame(0x82, b"last"),
                frame(0x88, payload),
                frame(0x82, b"late"),
            ]
            .concat();
            assert_eq!(feed(&mut frames, &bytes, bytes.len()).unwrap(), b"last");
            assert_eq!(frames.closed(), Some(code));
        }
    }

    #[test]
    fn what_breaks_the_rules_is_named_with_its_code() {
        let long = [0; 126];
        let mut unmasked = frame(0x82, b"");
        unmasked[1] = 0;
        let overlong = [0x82, 0xFE, 0, 5, 1, 1, 1, 1].to_vec();
        let overlong_8 = [&[0x82, 0xFF][..], &[0, 0, 0, 0, 0, 0, 255, 255], &MASK].concat();
        let negative = [&[0x82, 0xFF][..], &[0xFF; 8], &MASK].concat();
        for (bytes, code) in [
            (frame(0x81, b"text"), CloseCode::Unsupported),
            (frame(0x82, &[0; 1001]), CloseCode::TooBig),
            (frame(0xC2, b""), CloseCode::ProtocolError),
            (frame(0x83, b""), CloseCode::ProtocolError),
            (frame(0x8B, b""), CloseCode::ProtocolError),
            (frame(0x80, b""), CloseCode::ProtocolError),
            (
                [frame(0x02, b""), frame(0x02, b"")].concat(),
                CloseCode::ProtocolError,
            ),
            (frame(0x09, b"in pieces"), CloseCode::ProtocolError),
            (frame(0x89, &long), CloseCode::ProtocolError),
            (frame(0x88, b"\x03"), CloseCode::ProtocolError),
            (frame(0x88, b"\x03\xed"), CloseCode::ProtocolError),
            (frame(0x88, b"\x03\xe8\xff"), CloseCode::ProtocolError),
            (unmasked, CloseCode::ProtocolError),
            (overlong, CloseCode::ProtocolError),
            (overlong_8, CloseCode::ProtocolError),
            (negative, CloseCode::ProtocolError),
        ] {
            for size in [1, bytes.len()] {
                let broken = feed(&mut Frames::new(1000), &bytes, size).unwrap_err();
                assert_eq!(broken.0, code, "{bytes:x?}: {}", broken.1);
            }
        }
    }
}
