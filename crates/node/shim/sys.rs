//! The few C library calls the shim needs. Everything unsafe in it is here.

use std::ffi::{CString, c_char, c_int, c_short, c_ulong, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub const CLONE_NEWNS: c_int = 0x0002_0000;
pub const CLONE_NEWUTS: c_int = 0x0400_0000;
pub const CLONE_NEWIPC: c_int = 0x0800_0000;
pub const CLONE_NEWPID: c_int = 0x2000_0000;
pub const CLONE_NEWNET: c_int = 0x4000_0000;
pub const MS_NOSUID: c_ulong = 2;
pub const MS_NODEV: c_ulong = 4;
pub const MS_REC: c_ulong = 0x4000;
pub const MS_SLAVE: c_ulong = 1 << 19;
pub const POLLIN: c_short = 1;
pub const POLLOUT: c_short = 4;
pub const SIGKILL: c_int = 9;
pub const SIGTERM: c_int = 15;
const SIGCHLD: c_int = 17;
const SIGPIPE: c_int = 13;
const PR_SET_CHILD_SUBREAPER: c_int = 36;
const CLOCK_REALTIME: c_int = 0;
const CLOCK_BOOTTIME: c_int = 7;
const O_CLOEXEC: c_int = 0o2000000;
const O_NONBLOCK: c_int = 0o4000;
const O_RDWR: c_int = 2;
const O_NOCTTY: c_int = 0o400;
const F_GETFL: c_int = 3;
const F_SETFL: c_int = 4;
const WNOHANG: c_int = 1;
const TIOCSWINSZ: c_ulong = 0x5414;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct PollFd {
    pub fd: c_int,
    pub events: c_short,
    pub revents: c_short,
}

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanos: i64,
}

#[repr(C)]
struct Winsize {
    rows: u16,
    columns: u16,
    x: u16,
    y: u16,
}

unsafe extern "C" {
    fn fork() -> c_int;
    fn setsid() -> c_int;
    fn unshare(flags: c_int) -> c_int;
    fn setns(fd: c_int, kind: c_int) -> c_int;
    fn sethostname(name: *const c_char, len: usize) -> c_int;
    fn prctl(option: c_int, ...) -> c_int;
    fn mount(s: *const c_char, t: *const c_char, k: *const c_char, f: c_ulong, d: *const c_void) -> c_int;
    fn pipe2(fds: *mut c_int, flags: c_int) -> c_int;
    fn poll(fds: *mut PollFd, n: c_ulong, timeout: c_int) -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn kill(pid: c_int, signal: c_int) -> c_int;
    fn pause() -> c_int;
    fn signal(signum: c_int, handler: usize) -> usize;
    fn sigemptyset(set: *mut [u64; 16]) -> c_int;
    fn sigaddset(set: *mut [u64; 16], signum: c_int) -> c_int;
    fn sigprocmask(how: c_int, set: *const [u64; 16], old: *mut [u64; 16]) -> c_int;
    fn signalfd(fd: c_int, set: *const [u64; 16], flags: c_int) -> c_int;
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    fn fcntl(fd: c_int, command: c_int, ...) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, ...) -> c_int;
    fn posix_openpt(flags: c_int) -> c_int;
    fn grantpt(fd: c_int) -> c_int;
    fn unlockpt(fd: c_int) -> c_int;
    fn ptsname_r(fd: c_int, buffer: *mut c_char, len: usize) -> c_int;
    fn umask(mask: u32) -> u32;
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn owned(fd: c_int) -> OwnedFd {
    // SAFETY: every caller passes a descriptor it was just given by the kernel.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// True in the child. The shim has one thread, so a fork copies a consistent process.
pub fn fork_child() -> io::Result<bool> {
    // SAFETY: single-threaded process.
    Ok(check(unsafe { fork() })? == 0)
}

pub fn new_session() {
    // SAFETY: plain system calls without pointers.
    unsafe {
        setsid();
        umask(0o077);
        signal(SIGPIPE, 1);
        prctl(PR_SET_CHILD_SUBREAPER, 1 as c_ulong, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong);
    }
}

pub fn unshare_namespaces(flags: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { unshare(flags) }).map(drop)
}

/// Makes process 1 of a new process namespace, which all containers of the pod then share.
/// It reaps orphans (SIGCHLD ignored) and sleeps. Returns its process id.
pub fn start_pause() -> io::Result<c_int> {
    let own = File::open("/proc/self/ns/pid")?;
    unshare_namespaces(CLONE_NEWPID)?;
    // SAFETY: single-threaded; the child only sleeps.
    let pid = check(unsafe { fork() })?;
    if pid == 0 {
        // SAFETY: no pointers; never returns.
        unsafe {
            signal(SIGCHLD, 1);
            loop {
                pause();
            }
        }
    }
    // SAFETY: a valid descriptor of our own namespace.
    check(unsafe { setns(own.as_raw_fd(), CLONE_NEWPID) })?;
    Ok(pid)
}

pub fn set_hostname(name: &str) -> io::Result<()> {
    // SAFETY: pointer and length describe `name`.
    check(unsafe { sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

pub fn mount_at(source: &str, target: &str, kind: &str, flags: c_ulong, data: &str) -> io::Result<()> {
    let text = |s: &str| CString::new(s).map_err(|_| io::Error::other("NUL in a path"));
    let (source, target, kind, data) = (text(source)?, text(target)?, text(kind)?, text(data)?);
    // SAFETY: four NUL-terminated strings that live across the call.
    check(unsafe { mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast()) })
        .map(drop)
}

pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors.
    check(unsafe { pipe2(fds.as_mut_ptr(), O_CLOEXEC) })?;
    Ok((owned(fds[0]), owned(fds[1])))
}

pub fn set_nonblocking(fd: RawFd) {
    // SAFETY: no pointers.
    unsafe {
        let flags = fcntl(fd, F_GETFL);
        fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    }
}

/// A pseudo-terminal: our end and the end the container gets.
pub fn terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut name = [0u8; 64];
    // SAFETY: `name` is large enough for any pts path and its length is passed.
    let master = unsafe {
        let master = owned(check(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC))?);
        check(grantpt(master.as_raw_fd()))?;
        check(unlockpt(master.as_raw_fd()))?;
        if ptsname_r(master.as_raw_fd(), name.as_mut_ptr().cast(), name.len()) != 0 {
            return Err(io::Error::last_os_error());
        }
        master
    };
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    let path = String::from_utf8_lossy(&name[..end]).into_owned();
    use std::os::unix::fs::OpenOptionsExt;
    let slave = File::options().read(true).write(true).custom_flags(O_NOCTTY).open(path)?;
    Ok((master, slave.into()))
}

pub fn resize(fd: RawFd, columns: u16, rows: u16) {
    let size = Winsize { rows, columns, x: 0, y: 0 };
    // SAFETY: the kernel reads one Winsize.
    unsafe { ioctl(fd, TIOCSWINSZ, &size as *const Winsize) };
}

pub fn wait_ready(fds: &mut [PollFd], timeout_ms: c_int) {
    // SAFETY: pointer and length describe the slice. An interrupted call reports nothing ready.
    if unsafe { poll(fds.as_mut_ptr(), fds.len() as c_ulong, timeout_ms) } < 0 {
        fds.iter_mut().for_each(|fd| fd.revents = 0);
    }
}

/// The next dead child and its exit code in the shell's convention (128 + signal).
pub fn reap() -> Option<(c_int, i32)> {
    let mut status = 0;
    // SAFETY: one int to write to.
    let pid = unsafe { waitpid(-1, &mut status, WNOHANG) };
    if pid <= 0 {
        return None;
    }
    let signal = status & 0x7f;
    Some((pid, if signal == 0 { (status >> 8) & 0xff } else { 128 + signal }))
}

pub fn send_signal(pid: c_int, signal: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { kill(pid, signal) }).map(drop)
}

/// A descriptor that becomes readable when a child dies.
pub fn child_events() -> io::Result<OwnedFd> {
    let mut set = [0u64; 16];
    // SAFETY: the set has the size of the C library's sigset_t.
    unsafe {
        sigemptyset(&mut set);
        sigaddset(&mut set, SIGCHLD);
        check(sigprocmask(0, &set, std::ptr::null_mut()))?;
        Ok(owned(check(signalfd(-1, &set, O_CLOEXEC | O_NONBLOCK))?))
    }
}

fn clock(id: c_int) -> (i64, i64) {
    let mut time = Timespec { seconds: 0, nanos: 0 };
    // SAFETY: one Timespec to write to.
    unsafe { clock_gettime(id, &mut time) };
    (time.seconds, time.nanos)
}

pub fn now() -> (i64, i64) {
    clock(CLOCK_REALTIME)
}

pub fn boot_millis() -> i64 {
    let (seconds, nanos) = clock(CLOCK_BOOTTIME);
    seconds * 1000 + nanos / 1_000_000
}
