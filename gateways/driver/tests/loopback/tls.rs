//! TLS listeners, with rustls as the client.

use anabranch_driver::{
    ClientCertificates, DriverLimits, ListenerSetup, Reloaded, Tls, TlsFiles, TransportKind,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

use crate::quick;
use crate::setup::{Client, Node, any};

type Secured<S = TcpStream> = StreamOwned<ClientConnection, S>;

/// An authority and what it has signed.
pub struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        Authority {
            certificate: params.self_signed(&key).unwrap(),
            issuer: rcgen::Issuer::new(params, key),
        }
    }

    /// Certificate and key for a name, in PEM.
    fn sign(&self, name: &str) -> (String, String) {
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        (signed.pem(), key.serialize_pem())
    }

    /// What a client trusts.
    fn client(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        own: Option<(String, String)>,
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }
}

/// A folder with certificate and key of `localhost`.
pub struct Files {
    folder: TempDir,
    authority: Authority,
}

impl Files {
    pub fn new() -> Files {
        let files = Files {
            folder: tempfile::tempdir().unwrap(),
            authority: Authority::new(),
        };
        files.renew();
        files
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Another certificate of the same authority.
    fn renew(&self) {
        let (certificate, key) = self.authority.sign("localhost");
        self.write("certificate.pem", &certificate);
        self.write("key.pem", &key);
    }

    pub fn load(&self) -> Arc<Tls> {
        self.load_with(None)
    }

    fn load_with(&self, clients: Option<ClientCertificates>) -> Arc<Tls> {
        let files = TlsFiles {
            certificate: self.path("certificate.pem"),
            key: self.path("key.pem"),
            clients,
        };
        Arc::new(Tls::load(files).unwrap())
    }

    pub fn secure<S: Read + Write>(&self, stream: S) -> Secured<S> {
        secured(&self.authority.client(&[&TLS13], None), stream)
    }
}

fn secured<S: Read + Write>(config: &Arc<ClientConfig>, stream: S) -> Secured<S> {
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(config.clone(), name).unwrap(), stream)
}

fn node(tls: &Arc<Tls>, limits: DriverLimits) -> Node {
    let listener = ListenerSetup {
        tls: Some(tls.clone()),
        ..ListenerSetup::plain(any())
    };
    Node::listening(vec![listener], 2, limits)
}

impl Node {
    fn secured(&self, config: &Arc<ClientConfig>) -> Client<Secured> {
        Client::over(secured(config, self.socket()))
    }

    /// Waits until so many handshakes have failed and nobody is left.
    pub fn until_refused(&self, count: u64) {
        self.until(|rows| rows.is_empty() && self.driver.totals().handshakes_failed >= count);
        assert_eq!(self.driver.totals().handshakes_failed, count);
    }
}

fn echo(client: &mut Client<Secured<impl Read + Write>>, text: &str) {
    client.say(&format!("echo {text}"));
    assert_eq!(client.line(), text);
}

#[test]
fn words_pass_in_both_versions_and_the_end_is_said() {
    let files = Files::new();
    let node = node(&files.load(), quick());
    for version in [&TLS12, &TLS13] {
        let mut client = node.secured(&files.authority.client(&[version], None));
        echo(&mut client, "a");
        let row = &node.rows()[0];
        assert_eq!(row.transport, TransportKind::Tls);
        assert_eq!(
            (row.received_bytes, row.sent_bytes),
            (7, 2),
            "its own bytes"
        );
        client.raw(b"echo b\nquit\n");
        assert_eq!(client.line(), "b");
        // rustls takes an end without a close_notify for an attack and fails here.
        assert_eq!(client.socket().read(&mut [0]).unwrap(), 0);
        node.until(<[_]>::is_empty);
    }
    assert_eq!(node.driver.totals().handshakes_failed, 0);
}

/// Sends a byte at a time.
struct Dribble(TcpStream);

impl Read for Dribble {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Dribble {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(1)])
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn records_may_arrive_in_any_pieces() {
    let files = Files::new();
    let node = node(&files.load(), quick());
    for version in [&TLS12, &TLS13] {
        let config = files.authority.client(&[version], None);
        let mut client = Client::over(secured(&config, Dribble(node.socket())));
        echo(&mut client, "drop by drop");
        echo(&mut client, &"x".repeat(40_000));
    }
}

#[test]
fn much_passes_both_ways_and_unsent_bytes_stay_with_the_slow_reader() {
    let files = Files::new();
    let node = node(&files.load(), quick());
    let mut client = node.secured(&files.authority.client(&[&TLS13], None));
    let size = 20 * 1024 * 1024;
    client.say(&format!("big {size}"));
    client.say("echo end");
    node.until(|rows| rows.iter().any(|row| row.unsent_bytes > size / 4));
    assert_eq!(client.bytes(size), size);
    assert_eq!(client.line(), "end");
    node.until(|rows| rows.iter().all(|row| row.unsent_bytes == 0));
    let long = "y".repeat(1_000_000);
    echo(&mut client, &long);
}

#[test]
fn a_peer_that_never_reads_is_stopped() {
    let files = Files::new();
    let limits = DriverLimits {
        stall_ms: 100,
        ..quick()
    };
    let node = node(&files.load(), limits);
    let mut client = node.secured(&files.authority.client(&[&TLS13], None));
    client.say("big 20000000");
    node.until_empty();
}

#[test]
fn keys_may_be_changed_by_the_peer() {
    let files = Files::new();
    let node = node(&files.load(), quick());
    let mut client = node.secured(&files.authority.client(&[&TLS13], None));
    echo(&mut client, "before");
    for round in 0..5 {
        client.socket().conn.refresh_traffic_keys().unwrap();
        echo(&mut client, &format!("after {round}"));
    }
}

#[test]
fn a_session_is_resumed_by_its_ticket() {
    let files = Files::new();
    let node = node(&files.load(), quick());
    for version in [&TLS12, &TLS13] {
        let config = files.authority.client(&[version], None);
        for kind in [rustls::HandshakeKind::Full, rustls::HandshakeKind::Resumed] {
            let mut client = node.secured(&config);
            echo(&mut client, "here");
            assert_eq!(client.socket().conn.handshake_kind(), Some(kind));
        }
    }
}

#[test]
fn a_new_certificate_is_seen_by_new_connections_and_drops_none() {
    let files = Files::new();
    let tls = files.load();
    let node = node(&tls, quick());
    let config = files.authority.client(&[&TLS13], None);
    let shown = |client: &mut Client<Secured>| {
        let chain = client.socket().conn.peer_certificates().unwrap();
        chain[0].clone().into_owned()
    };
    let mut old = node.secured(&config);
    echo(&mut old, "old");

    files.write("certificate.pem", "half a cer");
    tls.reload().unwrap_err();
    let mut meanwhile = node.secured(&files.authority.client(&[&TLS13], None));
    echo(&mut meanwhile, "meanwhile");
    assert_eq!(shown(&mut meanwhile), shown(&mut old));

    files.renew();
    assert_eq!(tls.reload().unwrap(), Reloaded::Renewed);
    let mut new = node.secured(&files.authority.client(&[&TLS13], None));
    echo(&mut new, "new");
    assert_ne!(shown(&mut new), shown(&mut old));
    echo(&mut old, "still here");
    // A ticket of before asks for a handshake in full, and gets it.
    let mut again = node.secured(&config);
    echo(&mut again, "again");
    assert_eq!(shown(&mut again), shown(&mut new));
}

#[test]
fn clients_certificates_are_asked_for_and_checked() {
    let files = Files::new();
    let strangers = Authority::new();
    files.write("clients.pem", &files.authority.certificate.pem());
    for (version, required) in [
        (&TLS12, true),
        (&TLS13, true),
        (&TLS12, false),
        (&TLS13, false),
    ] {
        let tls = files.load_with(Some(ClientCertificates {
            authority: files.path("clients.pem"),
            required,
        }));
        let node = node(&tls, quick());
        let own = |from: &Authority| Some(from.sign("device-7"));
        let config = |own| files.authority.client(&[version], own);
        let mut known = node.secured(&config(own(&files.authority)));
        echo(&mut known, "known");
        drop(known);

        let mut nobody = node.secured(&config(None));
        nobody.say("echo nobody");
        let mut refused = 0;
        if required {
            assert!(nobody.socket().read(&mut [0]).is_err());
            refused += 1;
        } else {
            assert_eq!(nobody.line(), "nobody");
        }
        drop(nobody);
        let mut stranger = node.secured(&config(own(&strangers)));
        stranger.say("echo stranger");
        assert!(stranger.socket().read(&mut [0]).is_err());
        drop(stranger);
        node.until_refused(refused + 1);
    }
}

/// The first message of a client.
fn hello(files: &Files) -> Vec<u8> {
    let name = ServerName::try_from("localhost").unwrap();
    let config = files.authority.client(&[&TLS13], None);
    let mut client = ClientConnection::new(config, name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    hello
}

#[test]
fn what_is_no_handshake_is_refused_counted_and_harms_nobody() {
    let files = Files::new();
    let node = node(&files.load(), quick());
    let mut bystander = node.secured(&files.authority.client(&[&TLS13], None));
    echo(&mut bystander, "here");
    let mut broken = hello(&files);
    broken.truncate(60);
    broken.resize(4_000, 0xAB);
    let mut refused = 0;
    let openings: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        b"\x10\x10\x00\x04MQTT\x05\x02\x00\x3c\x00\x03abc",
        b"AMQP\x00\x00\x09\x01",
        &[0xFF; 5_000],
        &broken,
    ];
    for opening in openings {
        let mut client = node.connect();
        client.raw(opening);
        let mut said = Vec::new();
        client.socket().read_to_end(&mut said).ok();
        assert!(said.starts_with(b"\x15"), "an alert, not {said:x?}");
        refused += 1;
        node.until(|rows| rows.len() == 1);
        assert_eq!(node.driver.totals().handshakes_failed, refused);
    }
    // Bytes of chance, among them some that look like the beginning of a record.
    let mut state = 7_u64;
    for round in 0..200_usize {
        let mut bytes: Vec<u8> = (0..round * 7)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 33) as u8
            })
            .collect();
        if round % 2 == 0 && bytes.len() > 3 {
            bytes[..3].copy_from_slice(b"\x16\x03\x01");
        }
        let mut client = node.connect();
        client.raw(&bytes);
        client.socket().shutdown(Shutdown::Write).ok();
        client.socket().read_to_end(&mut Vec::new()).ok();
    }
    node.until(|rows| rows.len() == 1);
    echo(&mut bystander, "still here");
}

#[test]
fn a_changed_record_ends_the_connection() {
    let files = Files::new();
    let node = node(&files.load(), quick());
    let mut client = node.secured(&files.authority.client(&[&TLS13], None));
    echo(&mut client, "here");
    let mut forged = vec![0x17, 0x03, 0x03, 0x00, 0x40];
    forged.resize(5 + 0x40, 0x55);
    client.socket().sock.write_all(&forged).unwrap();
    assert!(client.socket().read(&mut [0]).is_err());
    node.until(<[_]>::is_empty);
    assert_eq!(
        node.driver.totals().handshakes_failed,
        0,
        "it was past that"
    );
}

#[test]
fn half_a_handshake_is_ended_in_time() {
    let files = Files::new();
    let limits = DriverLimits {
        login_ms: 100,
        ..quick()
    };
    let node = node(&files.load(), limits);
    let hello = hello(&files);
    let halves = [&hello[..0], &hello[..3], &hello[..hello.len() - 1], &hello];
    for (count, half) in (1..).zip(halves) {
        let mut client = node.connect();
        client.raw(half);
        client.socket().read_to_end(&mut Vec::new()).ok();
        node.until_refused(count);
    }
    // Whoever leaves in the middle has not failed.
    let mut client = node.connect();
    client.raw(&hello[..50]);
    drop(client);
    node.until_refused(4);
}

#[test]
fn an_operators_stop_and_a_shutdown_reach_it_in_its_words() {
    let files = Files::new();
    let node = node(&files.load(), quick());
    let mut client = node.secured(&files.authority.client(&[&TLS13], None));
    echo(&mut client, "here");
    // In the middle of its handshake, so that no word can reach it.
    let mut opening = node.connect();
    opening.raw(&hello(&files)[..10]);
    node.until(|rows| rows.len() == 2);
    node.driver.shutdown();
    assert_eq!(client.line(), "stop Shutdown");
    assert_eq!(client.socket().read(&mut [0]).unwrap(), 0);
    opening.expect_end();
}

#[test]
fn a_missing_file_is_named() {
    let files = TlsFiles {
        certificate: Path::new("/nonexistent/certificate.pem").to_owned(),
        key: Path::new("/nonexistent/key.pem").to_owned(),
        clients: None,
    };
    let error = Tls::load(files).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/certificate.pem"), "{error}");
}
