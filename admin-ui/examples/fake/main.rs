//! The console before a made-up node, for work on its pages: `cargo run -p anabranch-admin --example fake`.
//!
//! Listens on the loopback address given as first argument (default a free port), prints its own
//! address; signs in as `admin` with `admin-password`. With `empty` as second argument there is nothing
//! in the node yet.

use std::sync::Arc;

mod backend;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let busy = arguments.next().is_none_or(|word| word != "empty");
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    let backend = Arc::new(backend::Fake::new(busy));
    let stop = std::future::pending();
    anabranch_admin::serve(
        listener,
        backend,
        anabranch_admin::Settings::default(),
        stop,
    )
    .await
}
