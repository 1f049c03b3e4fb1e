//! The words of the conversation scripts: packets, answers, deliveries and commands as text.
//!
//! Lines of a script (`tests/scripts/*.txt`), fields in any order, text in double quotes:
//!
//! | line | means |
//! |---|---|
//! | `# ...` | the title, with the clause; line one |
//! | `config key=value` | a key of the gateway's configuration |
//! | `version 3`, `4` or `5` | how to read the output when no `connect` line says it |
//! | `open v5 id=dev ...` | connect, and have everything answered with yes |
//! | `> packet` or `>hex 30 ...` | bytes of the client; lines in a row are one read |
//! | `! answer` | an answer of the broker; `published` lines in a row come together |
//! | `* offset=5 q=1 topic=a/b body=x` | a delivery, likewise |
//! | `tick 1500` | time passes, in milliseconds, and the timer fires if it is due |
//! | `stop kicked` | the broker ends the connection |
//! | `< packet` | expected: a packet to the client |
//! | `? command` | expected: a command to the broker |
//! | `= close` | expected: the end |

mod input;
mod output;

pub use input::{answer, delivery, packet};
pub use output::{command_lines, packet_line};

/// A line split into words, with `key=value` words looked up by key.
pub struct Words<'a> {
    words: Vec<&'a str>,
}

impl<'a> Words<'a> {
    pub fn new(line: &'a str) -> Words<'a> {
        Words {
            words: line.split_whitespace().collect(),
        }
    }

    /// The word at a place that is not `key=value`.
    pub fn at(&self, place: usize) -> &'a str {
        self.words
            .get(place)
            .copied()
            .unwrap_or_else(|| panic!("too few words: {:?}", self.words))
    }

    /// All words from a place on.
    pub fn from(&self, place: usize) -> &[&'a str] {
        &self.words[place..]
    }

    pub fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.all(key).next()
    }

    /// Every value of a key, in order.
    pub fn all(&self, key: &str) -> impl Iterator<Item = &'a str> {
        self.words
            .iter()
            .filter_map(move |word| word.strip_prefix(key)?.strip_prefix('='))
    }

    /// The numbers of a key, parted by commas.
    pub fn numbers(&self, key: &str) -> Vec<u32> {
        self.text(key)
            .into_iter()
            .flat_map(|text| text.split(','))
            .map(|number| number.parse().expect("a number"))
            .collect()
    }

    pub fn number<N: TryFrom<u64>>(&self, key: &str) -> Option<N> {
        let text = self.text(key)?;
        let (digits, radix) = match text.strip_prefix("0x") {
            Some(digits) => (digits, 16),
            None => (text, 10),
        };
        let number = u64::from_str_radix(digits, radix).unwrap_or_else(|_| panic!("{key}={text}"));
        Some(N::try_from(number).unwrap_or_else(|_| panic!("{key}={text} is too large")))
    }
}
