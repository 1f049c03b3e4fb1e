//! What is found out about ports and programs before and while a broker starts.
//!
//! Owns free ports and first answers. Never keeps a process. Next: `mod.rs`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{BrokerError, io_error};
use crate::amqp::codec::PROTOCOL_HEADER;
use crate::mqtt::codec::Version;
use crate::mqtt::encode::{self, Connect};

/// Loopback ports that were free a moment ago, all different.
///
/// # Errors
/// When the system refuses one.
pub fn free_ports<const N: usize>() -> Result<[SocketAddr; N], BrokerError> {
    let mut listeners = Vec::new();
    let mut addresses = [SocketAddr::from(([127, 0, 0, 1], 0)); N];
    for address in &mut addresses {
        let listener = TcpListener::bind(*address).map_err(io_error("binding a loopback port"))?;
        *address = listener.local_addr().map_err(io_error("reading a port"))?;
        listeners.push(listener);
    }
    Ok(addresses)
}

/// The first line a program prints, with arguments.
pub fn first_line(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .find(|line| !line.trim().is_empty())
        .map(|line| line.trim().to_owned())
}

/// Whether something accepts connections there and answers `greeting`.
fn answers(address: SocketAddr, greeting: &[u8]) -> bool {
    let limit = Duration::from_secs(2);
    let Ok(mut stream) = TcpStream::connect_timeout(&address, limit) else {
        return false;
    };
    let mut byte = [0];
    stream.set_read_timeout(Some(limit)).is_ok()
        && stream.write_all(greeting).is_ok()
        && matches!(stream.read(&mut byte), Ok(1))
}

/// Whether a broker at this address answers a CONNECT.
pub fn answers_mqtt(address: SocketAddr) -> bool {
    let mut greeting = Vec::new();
    let connect = Connect {
        version: Version::V311,
        client_id: "ready",
        login: None,
        clean: true,
    };
    encode::connect(&mut greeting, &connect);
    answers(address, &greeting)
}

/// Whether a broker at this address answers the protocol header.
pub fn answers_amqp(address: SocketAddr) -> bool {
    answers(address, &PROTOCOL_HEADER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_can_be_bound() {
        let ports = free_ports::<4>().unwrap();
        for (index, address) in ports.iter().enumerate() {
            assert!(!ports[..index].contains(address));
            assert!(address.ip().is_loopback());
        }
    }
}
