//! Commands inside a container (`exec`) and connections to its main process (`attach`).

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

use super::shim::{self, Shim};
use crate::reexec;
use crate::runtime::{ExecRequest, RuntimeError, Session};

const BUFFER: usize = 64 * 1024;

/// Runs a command in the container whose folder is `dir`.
pub(crate) async fn exec(program: &Path, dir: &Path, request: &ExecRequest) -> Result<Session, RuntimeError> {
    let config: Value =
        serde_json::from_slice(&fs::read(dir.join("config.json")).map_err(RuntimeError::io("config.json"))?)
            .map_err(|error| RuntimeError::Create(error.to_string()))?;
    let mut process = config["process"].clone();
    process["args"] = serde_json::json!(request.command);
    process["terminal"] = request.tty.into();
    if request.tty
        && let Some(env) = process["env"].as_array_mut()
        && !env.iter().any(|e| e.as_str().is_some_and(|e| e.starts_with("TERM=")))
    {
        env.push("TERM=xterm".into());
    }
    let name = format!("exec-{}.json", uuid::Uuid::new_v4());
    let file = write_request(&name, dir, &process.to_string()).map_err(RuntimeError::io("exec"))?;
    let mut command = Command::new(program);
    command.arg(reexec::EXEC).arg(dir).arg(&file).env_clear().current_dir("/").kill_on_drop(true);
    let error_file = format!("{}.error", file.display());
    let session = if request.tty {
        with_terminal(command, error_file)
    } else {
        with_pipes(command, request, error_file)
    };
    session.map_err(|error| {
        let _ = fs::remove_file(&file);
        RuntimeError::io("start a command in the container")(error)
    })
}

/// In memory where the machine has such a folder: probes must not fail because the disk is full.
fn write_request(name: &str, dir: &Path, text: &str) -> io::Result<PathBuf> {
    let in_memory = Path::new("/run/tombolo");
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(in_memory);
    let file = in_memory.join(name);
    if made.and_then(|()| fs::write(&file, text)).is_ok() {
        return Ok(file);
    }
    let file = dir.join(name);
    fs::write(&file, text)?;
    Ok(file)
}

fn with_pipes(mut command: Command, request: &ExecRequest, error_file: String) -> io::Result<Session> {
    let pipe = |wanted: bool| if wanted { Stdio::piped() } else { Stdio::null() };
    command.stdin(pipe(request.stdin)).stdout(pipe(request.stdout)).stderr(pipe(request.stderr));
    let mut child = command.spawn()?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (done_tx, done) = oneshot::channel();
    tokio::spawn(wait(child, error_file, done_tx));
    let (resize, _) = mpsc::channel(1);
    Ok(Session {
        stdin: stdin.map(|s| Box::new(s) as _),
        stdout: stdout.map(|s| Box::new(s) as _),
        stderr: stderr.map(|s| Box::new(s) as _),
        resize,
        done,
    })
}

/// Ends with the command, or ends the command when nobody waits for it any more.
async fn wait(mut child: Child, error_file: String, mut done: oneshot::Sender<Result<i32, String>>) {
    let status = tokio::select! {
        status = child.wait() => status,
        () = done.closed() => {
            let _ = child.kill().await;
            let _ = fs::remove_file(&error_file);
            return;
        }
    };
    let outcome = match status.map(|s| s.code()) {
        Ok(Some(reexec::NOT_STARTED)) if Path::new(&error_file).exists() => {
            let reason = fs::read_to_string(&error_file).unwrap_or_default();
            let _ = fs::remove_file(&error_file);
            Err(reason)
        }
        Ok(code) => Ok(code.unwrap_or(137)),
        Err(error) => Err(error.to_string()),
    };
    let _ = done.send(outcome);
}

fn with_terminal(mut command: Command, error_file: String) -> io::Result<Session> {
    let terminal = nix::pty::openpty(None, None)?;
    let theirs = terminal.slave;
    command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
    let child = command.spawn()?;
    drop(command);
    let (done_tx, done) = oneshot::channel();
    let (resize, resizes) = mpsc::channel(1);
    tokio::spawn(wait(child, error_file, done_tx));
    let (stdin, stdin_end) = duplex(BUFFER);
    let (stdout, stdout_end) = duplex(BUFFER);
    spawn_terminal(terminal.master, stdin_end, stdout_end, resizes)?;
    Ok(Session { stdin: Some(Box::new(stdin)), stdout: Some(Box::new(stdout)), stderr: None, resize, done })
}

/// Carries bytes between a terminal and two in-memory streams until either side ends.
fn spawn_terminal(
    master: OwnedFd,
    mut stdin: DuplexStream,
    mut stdout: DuplexStream,
    mut resizes: mpsc::Receiver<(u16, u16)>,
) -> io::Result<()> {
    let flags =
        nix::fcntl::OFlag::from_bits_truncate(nix::fcntl::fcntl(&master, nix::fcntl::FcntlArg::F_GETFL)?);
    nix::fcntl::fcntl(&master, nix::fcntl::FcntlArg::F_SETFL(flags | nix::fcntl::OFlag::O_NONBLOCK))?;
    let master = std::sync::Arc::new(crate::sys::register(master)?);
    let writer = master.clone();
    tokio::spawn(async move {
        let mut buffer = vec![0u8; 4096];
        loop {
            tokio::select! {
                Some((columns, rows)) = resizes.recv() => crate::sys::resize_terminal(writer.get_ref().as_fd(), columns, rows),
                count = stdin.read(&mut buffer) => match count {
                    Ok(0) | Err(_) => return,
                    Ok(count) => if write_all(&writer, &buffer[..count]).await.is_err() { return },
                },
            }
        }
    });
    tokio::spawn(async move {
        let mut buffer = vec![0u8; BUFFER];
        loop {
            let Ok(mut ready) = master.readable().await else { return };
            match ready.try_io(|fd| nix::unistd::read(fd.get_ref(), &mut buffer).map_err(io::Error::from)) {
                Ok(Ok(0)) | Ok(Err(_)) => return,
                Ok(Ok(count)) => {
                    if stdout.write_all(&buffer[..count]).await.is_err() {
                        return;
                    }
                }
                Err(_would_block) => {}
            }
        }
    });
    Ok(())
}

async fn write_all(terminal: &AsyncFd<OwnedFd>, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        let mut ready = terminal.writable().await?;
        match ready.try_io(|fd| nix::unistd::write(fd.get_ref(), data).map_err(io::Error::from)) {
            Ok(count) => data = &data[count?..],
            Err(_would_block) => {}
        }
    }
    Ok(())
}

/// Connects to the main process of a container: its output from now on, and its input.
pub(crate) async fn attach(pod: &Path, id: &str, want_stdin: bool) -> Result<Session, RuntimeError> {
    let failed = |error: io::Error| RuntimeError::io("attach")(error);
    let mut connection = Shim::connect(pod).await.map_err(failed)?;
    connection.ask(&["attach", id]).await.map_err(failed)?;
    let (mut from_shim, mut to_shim) = connection.into_stream().into_split();
    let (stdin, mut stdin_end) = duplex(BUFFER);
    let (stdout, mut stdout_end) = duplex(BUFFER);
    let (stderr, mut stderr_end) = duplex(BUFFER);
    let (done_tx, done) = oneshot::channel();
    let (resize, mut resizes) = mpsc::channel::<(u16, u16)>(1);
    let (pod, id) = (pod.to_owned(), id.to_owned());
    tokio::spawn(async move {
        let mut buffer = vec![0u8; 16 * 1024];
        let mut open = want_stdin;
        loop {
            tokio::select! {
                size = resizes.recv() => match size {
                    Some((columns, rows)) => {
                        let _ = shim::ask(&pod, &["resize", &id, &columns.to_string(), &rows.to_string()]).await;
                    }
                    None => return,
                },
                count = stdin_end.read(&mut buffer), if open => {
                    let count = count.unwrap_or(0);
                    open = count > 0;
                    let mut frame = vec![0u8];
                    frame.extend_from_slice(&(count as u32).to_be_bytes());
                    frame.extend_from_slice(&buffer[..count]);
                    if to_shim.write_all(&frame).await.is_err() {
                        return;
                    }
                }
            }
        }
    });
    tokio::spawn(async move {
        let mut head = [0u8; 5];
        while !done_tx.is_closed() && from_shim.read_exact(&mut head).await.is_ok() {
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            let mut data = vec![0u8; length];
            if from_shim.read_exact(&mut data).await.is_err() {
                break;
            }
            let target = if head[0] == 2 { &mut stderr_end } else { &mut stdout_end };
            // A viewer of one stream drops the other: that one's bytes are lost on purpose.
            let _ = target.write_all(&data).await;
        }
        let _ = done_tx.send(Ok(0));
    });
    Ok(Session {
        stdin: want_stdin.then(|| Box::new(stdin) as _),
        stdout: Some(Box::new(stdout)),
        stderr: Some(Box::new(stderr)),
        resize,
        done,
    })
}
