//! Every decoder of the AMQP wire format on arbitrary bytes: `cargo +nightly fuzz run decode`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| anabranch_amqp::fuzz_decode(data));
