//! Telling the service manager that everything answers, as sd_notify(3) describes it: one datagram, if anybody waits for it.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// systemd starts what comes after us from now on, and `systemctl start` ends.
pub fn ready() {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = tell(&socket, b"READY=1") {
        tracing::warn!(%error, "the service manager does not hear that this process is ready");
    }
}

fn tell(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told_by_both_kinds_of_address() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("notify");
        let name = format!("tombolo-notify-test-{}", std::process::id());
        let named = SocketAddr::from_abstract_name(&name).expect("a name");
        let waiting = [UnixDatagram::bind(&path), UnixDatagram::bind_addr(&named)];
        for (socket, waits) in [path.into_os_string(), format!("@{name}").into()].iter().zip(waiting) {
            tell(socket, b"READY=1").expect("told");
            let mut buffer = [0; 16];
            let length = waits.expect("bound").recv(&mut buffer).expect("heard");
            assert_eq!(&buffer[..length], b"READY=1");
        }
        assert!(tell("/nonexistent/notify".as_ref(), b"READY=1").is_err());
    }
}
