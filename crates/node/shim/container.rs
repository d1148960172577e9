//! One container of the pod: its creation by the node's binary, its output, its end.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::log::{Lines, Log};
use crate::sys;

/// Bytes of the record of a container's end, padded with spaces.
const RECORD: usize = 64;

/// How many bytes of standard input wait for a container that does not read.
pub const STDIN_BACKLOG: usize = 256 * 1024;

#[derive(PartialEq, Clone, Copy)]
pub enum Phase {
    /// `creator` is the process that sets the container up; `client` waits for the answer.
    Creating {
        creator: i32,
        client: u64,
    },
    Running {
        pid: i32,
    },
    Exited {
        code: i32,
    },
}

pub struct Output {
    pub source: File,
    pub number: u8,
    lines: Lines,
}

pub struct Container {
    pub id: String,
    pub dir: PathBuf,
    pub phase: Phase,
    pub outputs: Vec<Output>,
    pub stdin: Option<File>,
    pub stdin_pending: Vec<u8>,
    /// Close standard input once what is pending has been written.
    pub stdin_ending: bool,
    pub stdin_once: bool,
    pub tty: bool,
    pub log: Log,
}

/// What the node asks for: `flags` has `t` for a terminal, `i` for standard input, `o` to close it after the first client.
pub struct Request<'a> {
    pub id: &'a str,
    pub dir: &'a str,
    pub log: &'a str,
    pub flags: &'a str,
    pub program: &'a str,
    pub args: &'a [&'a str],
}

impl Container {
    pub fn create(request: &Request<'_>, client: u64) -> io::Result<Container> {
        let log = Log::open(request.log.as_ref())?;
        // The room for the record of its end is taken now: a disk that is full later must not hide the end.
        fs::write(PathBuf::from(request.dir).join("exit.new"), [b' '; RECORD])?;
        let tty = request.flags.contains('t');
        let mut outputs = Vec::new();
        let mut stdin = None;
        let mut command = Command::new(request.program);
        command.args(request.args).env_clear().current_dir("/");
        if tty {
            let (ours, theirs) = sys::terminal()?;
            stdin = Some(File::from(ours.try_clone()?));
            command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
            outputs.push(Output::new(ours, 1, "stdout"));
        } else {
            let ((out, out_end), (err, err_end)) = (sys::pipe()?, sys::pipe()?);
            command.stdout(out_end).stderr(err_end);
            outputs.push(Output::new(out, 1, "stdout"));
            outputs.push(Output::new(err, 2, "stderr"));
            if request.flags.contains('i') {
                let (theirs, ours) = sys::pipe()?;
                command.stdin(theirs);
                stdin = Some(File::from(ours));
            } else {
                command.stdin(Stdio::null());
            }
        }
        if let Some(stdin) = &stdin {
            sys::set_nonblocking(stdin.as_raw_fd());
        }
        let creator = command.spawn()?.id() as i32;
        Ok(Container {
            id: request.id.to_owned(),
            dir: request.dir.into(),
            phase: Phase::Creating { creator, client },
            outputs,
            stdin,
            stdin_pending: Vec::new(),
            stdin_ending: false,
            stdin_once: request.flags.contains('o'),
            tty,
            log,
        })
    }

    /// The process id the creator left behind, once it has succeeded.
    pub fn created_pid(&self) -> Option<i32> {
        fs::read_to_string(self.dir.join("pid")).ok()?.trim().parse().ok()
    }

    pub fn creation_error(&self) -> String {
        let text = fs::read_to_string(self.dir.join("error")).unwrap_or_default();
        let text = text.trim().replace(['\n', '\t'], " ");
        if text.is_empty() { "the creating process ended without a word".into() } else { text }
    }

    /// Reads what is there, writes it to the log and hands it to `watch`. Removes streams that ended.
    pub fn pump(&mut self, fd: Option<RawFd>, mut watch: impl FnMut(u8, &[u8])) {
        let log = &mut self.log;
        self.outputs.retain_mut(|output| {
            if fd.is_some_and(|fd| fd != output.source.as_raw_fd()) {
                return true;
            }
            let mut buffer = [0u8; 32 * 1024];
            // Bounded per turn, so that one loud container does not silence the others.
            for _ in 0..8 {
                match output.source.read(&mut buffer) {
                    Ok(0) => {
                        output.lines.finish(log);
                        return false;
                    }
                    Ok(count) => {
                        output.lines.push(log, &buffer[..count]);
                        watch(output.number, &buffer[..count]);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    // A terminal whose last user has left answers EIO.
                    Err(_) => {
                        output.lines.finish(log);
                        return false;
                    }
                }
            }
            true
        });
    }

    pub fn write_stdin(&mut self) {
        let Some(stdin) = &mut self.stdin else {
            self.stdin_pending.clear();
            return;
        };
        while !self.stdin_pending.is_empty() {
            match stdin.write(&self.stdin_pending) {
                Ok(count) => drop(self.stdin_pending.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.stdin_pending.clear(),
            }
        }
        if self.stdin_ending && !self.tty {
            self.stdin = None;
        }
    }

    /// Records the end on disk first, so that a node that is away learns of it later.
    pub fn exited(&mut self, code: i32, watch: impl FnMut(u8, &[u8])) {
        self.pump(None, watch);
        let log = &mut self.log;
        self.outputs.iter_mut().for_each(|output| output.lines.finish(log));
        self.outputs.clear();
        self.stdin = None;
        self.phase = Phase::Exited { code };
        let (temporary, record) = (self.dir.join("exit.new"), self.dir.join("exit"));
        let (seconds, nanos) = sys::now();
        let text = format!("{:<width$}\n", format!("{code} {seconds}.{nanos:09}"), width = RECORD - 1);
        let written = File::options().write(true).open(&temporary).and_then(|mut f| f.write_all(text.as_bytes()));
        if written.is_ok() {
            let _ = fs::rename(&temporary, &record);
        }
    }
}

impl Output {
    fn new(source: OwnedFd, number: u8, stream: &'static str) -> Output {
        sys::set_nonblocking(source.as_raw_fd());
        Output { source: source.into(), number, lines: Lines::new(stream) }
    }
}
