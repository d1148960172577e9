//! Ports that are opened before the machine has their address.

use std::io;
use std::net::SocketAddr;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Listens on an address, also on one that no link has yet: a machine may start before its network. A port that is taken is
/// an error as ever.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
        bound => return bound,
    }
    tracing::warn!(%address, "this machine does not have the address yet; clients are answered as soon as it has");
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    setsockopt(&socket, sockopt::IpFreebind, &true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_nobody_has_yet_is_listened_on_and_a_taken_port_is_refused() {
        for address in ["198.51.100.7:0", "[2001:db8::7]:0", "127.0.0.1:0"] {
            let first = listen(address.parse().unwrap()).await.unwrap();
            let bound = first.local_addr().unwrap();
            assert_ne!(bound.port(), 0);
            let taken = listen(bound).await.unwrap_err();
            assert_eq!(taken.kind(), io::ErrorKind::AddrInUse, "{address}");
        }
    }
}
