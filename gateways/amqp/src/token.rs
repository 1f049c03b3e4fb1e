//! What the connection calls its questions to core.
//!
//! | bits | of a publish | of anything else |
//! |---|---|---|
//! | 63 | 0 | 1 |
//! | 52-62 | channel number | counter |
//! | 40-51 | life of the channel number, modulo 4096 | counter |
//! | 0-39 | number of the publish on the channel, from 1 | counter |
//!
//! So publishes of a channel have consecutive tokens and need no table, and answers for an earlier life
//! of a channel number are told apart. Owns this layout only.

use anabranch_core::id::Token;

/// Bits of the publish number.
const NUMBER_BITS: u32 = 40;
/// Bits of the channel's life.
const LIFE_BITS: u32 = 12;
const ASK: u64 = 1 << 63;

/// One life of a channel number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelLife {
    /// The channel number, at most 2047.
    pub channel: u16,
    /// Which life of that number, modulo 4096.
    pub life: u16,
}

/// A token, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The `number`-th publish of a channel.
    Publish(ChannelLife, u64),
    /// Another question.
    Ask(u64),
}

/// The token of a channel's `number`-th publish.
#[inline]
pub fn publish(of: ChannelLife, number: u64) -> Token {
    let channel = u64::from(of.channel & 0x7FF) << (NUMBER_BITS + LIFE_BITS);
    let life = u64::from(of.life & 0xFFF) << NUMBER_BITS;
    Token(channel | life | (number & ((1 << NUMBER_BITS) - 1)))
}

/// The token of another question; `counter` counts them.
pub fn ask(counter: u64) -> Token {
    Token(ASK | counter)
}

/// Takes a token apart.
#[inline]
pub fn which(token: Token) -> Which {
    if token.0 & ASK != 0 {
        return Which::Ask(token.0 & !ASK);
    }
    let life = ChannelLife {
        channel: (token.0 >> (NUMBER_BITS + LIFE_BITS)) as u16 & 0x7FF,
        life: (token.0 >> NUMBER_BITS) as u16 & 0xFFF,
    };
    Which::Publish(life, token.0 & ((1 << NUMBER_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_gives_back_what_it_was_made_of() {
        let of = ChannelLife {
            channel: 2047,
            life: 4095,
        };
        assert_eq!(which(publish(of, 77)), Which::Publish(of, 77));
        assert_eq!(publish(of, 78).0, publish(of, 77).0 + 1);
        assert_eq!(which(ask(5)), Which::Ask(5));
        assert_ne!(
            publish(
                ChannelLife {
                    channel: 1,
                    life: 0
                },
                1
            ),
            Token::NONE
        );
    }
}
