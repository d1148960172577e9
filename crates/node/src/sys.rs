//! The only `unsafe` code of the workspace: system calls that no safe library wraps.

#![allow(
    unsafe_code,
    reason = "terminal ioctls, seccomp without no_new_privs and AsyncFd have no safe wrapper"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Makes standard input the controlling terminal of this session, so that job control and Ctrl-C work.
pub(crate) fn take_terminal() -> io::Result<()> {
    // SAFETY: the argument is a plain number; the call touches no memory of ours.
    let result = unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Tells a terminal its size.
pub(crate) fn resize_terminal(terminal: impl AsFd, columns: u16, rows: u16) {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel reads one `winsize`, which lives across the call.
    unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &size) };
}

/// Installs a system call filter for this process and all it starts, without setting "no new privileges"
/// (set-user-id programs keep working, as they do under other runtimes).
pub(crate) fn install_filter(program: &[seccompiler::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel copies `len` instructions from `filter`; both types are `struct sock_filter`.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Puts a descriptor under the event loop.
pub(crate) fn register(
    fd: std::os::fd::OwnedFd,
) -> io::Result<tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>> {
    // SAFETY: an `OwnedFd` always gives the same, open descriptor until it is dropped, with the `AsyncFd`.
    unsafe { tokio::io::unix::AsyncFd::register(fd) }.map_err(Into::into)
}
