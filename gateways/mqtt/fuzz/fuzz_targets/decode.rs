//! Any bytes through the decoder: whole, split, both versions, and back.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    anabranch_mqtt::codec::fuzz_decode(data);
});
