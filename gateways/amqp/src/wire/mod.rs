//! The wire format of AMQP 0-9-1: bytes to values and back, nothing else.
//!
//! | module | owns |
//! |---|---|
//! | `frame` | protocol header, frame headers, cutting a byte stream into frames |
//! | `field` | the domains (octet, short, bit, short string...) a method's arguments are made of |
//! | `method` | every method of every class, both directions |
//! | `table` | field tables and arrays, decoded on demand |
//! | `properties` | the content header and its property list, kept raw and walked once |
//! | `batch` | what is to be sent, large bodies apart so that one `writev` takes it |
//!
//! Decoding borrows from the read buffer and allocates nothing. No state of a connection or channel
//! lives here. Every failure is an `AmqpError` that says which code a peer gets.

pub mod batch;
pub mod field;
pub mod frame;
pub mod fuzz;
pub mod method;
pub mod properties;
pub mod table;
