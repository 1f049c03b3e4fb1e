//! What a peer can be told went wrong: reply codes and the scope they close.
//!
//! Owns the numbers and names of AMQP 0-9-1 section 1.2 of the XML grammar ("constants") and the rule
//! that a hard error closes the connection and a soft error closes the channel it happened on
//! (section 2.2.10, 4.2.3). Never decides *when* something is an error; `wire` and the connection do.

use std::borrow::Cow;
use std::fmt;

/// A reply code of `connection.close`, `channel.close` and `basic.return`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplyCode(pub u16);

/// One table gives the constants, the names and the class (soft or hard) of every code.
macro_rules! reply_codes {
    ($($name:ident = $code:literal, $text:literal, $hard:literal;)*) => {
        impl ReplyCode {
            $(
                #[doc = concat!("`", $text, "` (", stringify!($code), "), AMQP 0-9-1 constants.")]
                pub const $name: Self = Self($code);
            )*

            /// The name the standard gives the code, as it opens a reply text; `UNKNOWN` for others.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($code => $text,)*
                    _ => "UNKNOWN",
                }
            }

            /// True when the standard classes the code as a connection exception ("hard error").
            pub fn is_hard(self) -> bool {
                match self.0 {
                    $($code => $hard,)*
                    _ => true,
                }
            }
        }
    };
}

reply_codes! {
    REPLY_SUCCESS = 200, "OK", false;
    CONTENT_TOO_LARGE = 311, "CONTENT_TOO_LARGE", false;
    NO_ROUTE = 312, "NO_ROUTE", false;
    NO_CONSUMERS = 313, "NO_CONSUMERS", false;
    CONNECTION_FORCED = 320, "CONNECTION_FORCED", true;
    INVALID_PATH = 402, "INVALID_PATH", true;
    ACCESS_REFUSED = 403, "ACCESS_REFUSED", false;
    NOT_FOUND = 404, "NOT_FOUND", false;
    RESOURCE_LOCKED = 405, "RESOURCE_LOCKED", false;
    PRECONDITION_FAILED = 406, "PRECONDITION_FAILED", false;
    FRAME_ERROR = 501, "FRAME_ERROR", true;
    SYNTAX_ERROR = 502, "SYNTAX_ERROR", true;
    COMMAND_INVALID = 503, "COMMAND_INVALID", true;
    CHANNEL_ERROR = 504, "CHANNEL_ERROR", true;
    UNEXPECTED_FRAME = 505, "UNEXPECTED_FRAME", true;
    RESOURCE_ERROR = 506, "RESOURCE_ERROR", true;
    NOT_ALLOWED = 530, "NOT_ALLOWED", true;
    NOT_IMPLEMENTED = 540, "NOT_IMPLEMENTED", true;
    INTERNAL_ERROR = 541, "INTERNAL_ERROR", true;
}

impl fmt::Debug for ReplyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.name())
    }
}

impl fmt::Display for ReplyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.name())
    }
}

/// What an error closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// `channel.close` on the channel the error happened on; its siblings go on.
    Channel,
    /// `connection.close` on channel 0.
    Connection,
}

/// An error a peer is told, with what `connection.close` and `channel.close` carry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text} (class {class_id}, method {method_id})")]
pub struct AmqpError {
    /// The reply code.
    pub code: ReplyCode,
    /// What happened, without the code's name in front.
    pub text: Cow<'static, str>,
    /// Class of the method that caused it, 0 when no method did.
    pub class_id: u16,
    /// Method that caused it, 0 when no method did.
    pub method_id: u16,
    /// What it closes.
    pub scope: Scope,
}

impl AmqpError {
    /// An error that closes the connection and that no method caused.
    pub fn connection(code: ReplyCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            text: text.into(),
            class_id: 0,
            method_id: 0,
            scope: Scope::Connection,
        }
    }

    /// An error that closes the channel it happened on.
    pub fn channel(code: ReplyCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            text: text.into(),
            class_id: 0,
            method_id: 0,
            scope: Scope::Channel,
        }
    }

    /// The same error, caused by a method (`(class, method)` of the XML grammar).
    pub fn by(mut self, (class_id, method_id): (u16, u16)) -> Self {
        self.class_id = class_id;
        self.method_id = method_id;
        self
    }

    /// The reply text as it goes on the wire: `NAME - text`, cut to what a short string holds.
    pub fn reply_text(&self) -> String {
        let mut text = format!("{} - {}", self.code.name(), self.text);
        if text.len() > 255 {
            let mut end = 255;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_the_xml_constants() {
        assert!(!ReplyCode::ACCESS_REFUSED.is_hard());
        assert!(!ReplyCode::PRECONDITION_FAILED.is_hard());
        assert!(ReplyCode::FRAME_ERROR.is_hard());
        assert!(ReplyCode::NOT_ALLOWED.is_hard());
        assert_eq!(ReplyCode::NOT_FOUND.to_string(), "404 NOT_FOUND");
    }

    #[test]
    fn reply_text_fits_a_short_string_on_a_character_boundary() {
        let error = AmqpError::channel(ReplyCode::NOT_FOUND, "é".repeat(300));
        let text = error.reply_text();
        assert!(text.len() <= 255 && text.len() >= 254);
        assert!(text.starts_with("NOT_FOUND - é"));
    }
}
