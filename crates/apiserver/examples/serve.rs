//! Runs the API server by itself: `serve [ADDR:PORT] [DIR]`.

use std::sync::Arc;

use tombolo_apiserver::{Config, Server};
use tombolo_store::MemoryStore;

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:0".into()).parse()?;
    let folder = args.next().unwrap_or_else(|| ".".into());
    let server = Server::start(Config::new(Arc::new(MemoryStore::new()))).await?;
    let listening = server.listen(address).await?;
    let kubeconfig = format!("{folder}/admin.kubeconfig");
    std::fs::write(&kubeconfig, server.admin_kubeconfig(&format!("https://{}", listening.address))?)?;
    println!("ready: https://{} {kubeconfig}", listening.address);
    tokio::signal::ctrl_c().await?;
    server.shutdown(std::time::Duration::from_secs(5)).await?;
    Ok(())
}
