//! The pod's shim: one small process per pod that outlives the node.
//!
//! It holds the pod's namespaces (network, IPC, host name, mounts), is the parent of the pod's containers,
//! keeps the other ends of their pipes, writes their logs, records how they ended, and stops them when the
//! fencing deadline passes without being renewed.
//!
//! Usage: `shim POD_DIR NAMESPACES HOSTNAME`, where NAMESPACES is made of the letters `n` (network), `i` (IPC),
//! `u` (host name) and `p` (one process namespace for all containers). It goes to the background once
//! `POD_DIR/shim.sock` answers, printing `ok PID` or `err REASON`.
//!
//! Requests (one line, fields separated by tabs): `run ID DIR LOG FLAGS PROGRAM ARG…`, `kill ID SIGNAL`, `list`,
//! `events`, `attach ID`, `resize ID COLUMNS ROWS`, `reopen ID`, `forget ID`, `tmpfs PATH OPTIONS`,
//! `fence STOP KILL` (milliseconds on the boot clock), `exit`.
//!
//! Invariants: one thread; nothing waits for the node; a container's end is on disk before anybody is told.

mod client;
mod container;
mod log;
mod sys;

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::exit;

use client::{Client, Mode};
use container::{Container, Phase, Request, STDIN_BACKLOG};
use sys::{POLLIN, POLLOUT, PollFd};

struct Shim {
    listener: UnixListener,
    children: OwnedFd,
    clients: Vec<Client>,
    containers: Vec<Container>,
    /// Children that ended before their creator told us who they are.
    unknown_dead: Vec<(i32, i32)>,
    next_client: u64,
    /// When to ask the containers to end, and when to end them, unless it is moved before. On the boot clock, which
    /// counts sleep and never jumps.
    fence: Option<(i64, i64)>,
    /// The containers were asked to end because of the fence: nothing new starts.
    fenced: bool,
    pause: Option<i32>,
    leaving: bool,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, dir, namespaces, hostname] = args.as_slice() else {
        eprintln!("usage: shim POD_DIR NAMESPACES HOSTNAME (started by a tombolo node, not by hand)");
        exit(2);
    };
    match sys::fork_child() {
        Ok(false) => exit(0),
        Ok(true) => {}
        Err(error) => return println!("err fork: {error}"),
    }
    match start(dir, namespaces, hostname) {
        Ok(mut shim) => {
            println!("ok {}", std::process::id());
            release_stdio();
            loop {
                shim.turn();
            }
        }
        Err(error) => println!("err {error}"),
    }
}

fn start(dir: &str, namespaces: &str, hostname: &str) -> io::Result<Shim> {
    let context = |what: &'static str| move |error: io::Error| io::Error::other(format!("{what}: {error}"));
    sys::new_session();
    let mut flags = sys::CLONE_NEWNS;
    for letter in namespaces.chars() {
        flags |= match letter {
            'n' => sys::CLONE_NEWNET,
            'i' => sys::CLONE_NEWIPC,
            'u' => sys::CLONE_NEWUTS,
            _ => 0,
        };
    }
    sys::unshare_namespaces(flags).map_err(context("new namespaces"))?;
    // Mounts of the host keep arriving here, ours never leave.
    sys::mount_at("none", "/", "none", sys::MS_REC | sys::MS_SLAVE, "").map_err(context("private mounts"))?;
    if namespaces.contains('u') {
        sys::set_hostname(hostname).map_err(context("host name"))?;
    }
    let children = sys::child_events()?;
    let pause = if namespaces.contains('p') { Some(sys::start_pause()?) } else { None };
    std::env::set_current_dir(dir).map_err(context("pod folder"))?;
    // One shim per pod: a node that was killed while it started one may start another.
    let lock = fs::File::create("shim.lock").map_err(context("shim.lock"))?;
    lock.try_lock().map_err(|_| io::Error::other("the pod has a shim already"))?;
    std::mem::forget(lock);
    let _ = fs::remove_file("shim.sock");
    let listener = UnixListener::bind("shim.sock").map_err(context("shim.sock"))?;
    listener.set_nonblocking(true)?;
    fs::write("shim.pid", format!("{}\n{}\n", std::process::id(), pause.unwrap_or(0)))?;
    Ok(Shim {
        listener,
        children,
        clients: Vec::new(),
        containers: Vec::new(),
        unknown_dead: Vec::new(),
        next_client: 1,
        fence: None,
        fenced: false,
        pause,
        leaving: false,
    })
}

/// Lets go of the starter's pipes: it waits for their end.
fn release_stdio() {
    let _ = io::stdout().flush();
    for fd in 0..3 {
        // SAFETY: the standard descriptors are not used again; /dev/null takes the lowest free number.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        if let Ok(null) = fs::File::options().read(true).write(true).open("/dev/null") {
            std::mem::forget(null);
        }
    }
}

impl Shim {
    fn turn(&mut self) {
        let mut fds = vec![
            PollFd { fd: self.listener.as_raw_fd(), events: POLLIN, revents: 0 },
            PollFd { fd: self.children.as_raw_fd(), events: POLLIN, revents: 0 },
        ];
        for client in &self.clients {
            let mut events = if self.reading(client) { POLLIN } else { 0 };
            events |= if client.output.is_empty() { 0 } else { POLLOUT };
            fds.push(PollFd { fd: client.socket.as_raw_fd(), events, revents: 0 });
        }
        let clients_end = fds.len();
        for container in &self.containers {
            for output in &container.outputs {
                fds.push(PollFd { fd: output.source.as_raw_fd(), events: POLLIN, revents: 0 });
            }
            if let (Some(stdin), false) = (&container.stdin, container.stdin_pending.is_empty()) {
                fds.push(PollFd { fd: stdin.as_raw_fd(), events: POLLOUT, revents: 0 });
            }
        }
        let next = self.fence.map(|(stop, kill)| if self.fenced { kill } else { stop });
        let timeout = next.map_or(-1, |at| (at - sys::boot_millis()).clamp(0, 60_000) as i32);
        sys::wait_ready(&mut fds, timeout);
        self.enforce_fence();

        for ready in fds[clients_end..].iter().filter(|fd| fd.revents != 0) {
            self.container_ready(ready);
        }
        for ready in fds[2..clients_end].iter().filter(|fd| fd.revents != 0) {
            if let Some(client) = self.clients.iter_mut().find(|c| c.socket.as_raw_fd() == ready.fd) {
                if ready.revents & POLLOUT != 0 {
                    client.flush();
                }
                if ready.revents & !POLLOUT != 0 {
                    client.read();
                }
            }
        }
        if fds[1].revents != 0 {
            self.reap();
        }
        if fds[0].revents != 0 {
            while let Ok((socket, _)) = self.listener.accept() {
                self.clients.push(Client::new(self.next_client, socket));
                self.next_client += 1;
            }
        }
        self.serve_clients();
        if self.leaving && self.containers.iter().all(|c| matches!(c.phase, Phase::Exited { .. })) {
            if let Some(pause) = self.pause {
                let _ = sys::send_signal(pause, sys::SIGKILL);
            }
            let _ = fs::remove_file("shim.sock");
            let _ = fs::remove_file("shim.pid");
            exit(0);
        }
    }

    /// Input for a container that does not read waits with its sender, not here.
    fn reading(&self, client: &Client) -> bool {
        let Mode::Attached { container } = &client.mode else { return !client.ending };
        self.containers
            .iter()
            .find(|c| c.id == *container)
            .is_none_or(|c| c.stdin_pending.len() < STDIN_BACKLOG)
    }

    fn container_ready(&mut self, ready: &PollFd) {
        let (containers, clients) = (&mut self.containers, &mut self.clients);
        for container in containers.iter_mut() {
            if container.outputs.iter().any(|o| o.source.as_raw_fd() == ready.fd) {
                let id = container.id.clone();
                container.pump(Some(ready.fd), |stream, data| broadcast(clients, &id, stream, data));
            } else if container.stdin.as_ref().is_some_and(|s| s.as_raw_fd() == ready.fd) {
                container.write_stdin();
            }
        }
    }

    fn reap(&mut self) {
        let _ =
            fs::File::from(self.children.try_clone().expect("a descriptor is free")).read(&mut [0u8; 4096]);
        while let Some((pid, code)) = sys::reap() {
            self.child_ended(pid, code);
        }
    }

    fn child_ended(&mut self, pid: i32, code: i32) {
        for index in 0..self.containers.len() {
            match self.containers[index].phase {
                Phase::Creating { creator, client } if creator == pid => {
                    return self.creator_ended(index, client, code);
                }
                Phase::Running { pid: running } if running == pid => {
                    return self.container_ended(index, code);
                }
                _ => {}
            }
        }
        // Grandchildren that lost their parent also land here; keep the list short.
        if self.containers.iter().any(|c| matches!(c.phase, Phase::Creating { .. })) {
            self.unknown_dead.push((pid, code));
        } else {
            self.unknown_dead.clear();
        }
    }

    fn creator_ended(&mut self, index: usize, client: u64, code: i32) {
        let pid = if code == 0 { self.containers[index].created_pid() } else { None };
        let answer = match pid {
            Some(pid) => {
                self.containers[index].phase = Phase::Running { pid };
                format!("ok\t{pid}")
            }
            None => {
                let container = self.containers.remove(index);
                // Without it the container never was: a node that missed our answer must not wait for its end.
                let _ = fs::remove_file(container.dir.join("pid"));
                format!("err\t{}", container.creation_error())
            }
        };
        if let Some(client) = self.clients.iter_mut().find(|c| c.number == client) {
            client.answer(&answer);
        }
        let Some(pid) = pid else { return };
        if let Some(at) = self.unknown_dead.iter().position(|(dead, _)| *dead == pid) {
            let (_, code) = self.unknown_dead.remove(at);
            self.container_ended(index, code);
        } else if self.leaving {
            let _ = sys::send_signal(pid, sys::SIGKILL);
        }
    }

    fn container_ended(&mut self, index: usize, code: i32) {
        let (container, clients) = (&mut self.containers[index], &mut self.clients);
        let id = container.id.clone();
        container.exited(code, |stream, data| broadcast(clients, &id, stream, data));
        for client in clients.iter_mut() {
            match &client.mode {
                Mode::Events => client.answer(&format!("exit\t{id}\t{code}")),
                Mode::Attached { container } if *container == id => {
                    client.ending = true;
                    client.flush();
                }
                _ => {}
            }
        }
    }

    fn serve_clients(&mut self) {
        let mut clients = std::mem::take(&mut self.clients);
        for index in 0..clients.len() {
            loop {
                if let Mode::Attached { container } = &clients[index].mode {
                    let id = container.clone();
                    match clients[index].next_frame() {
                        Some((stream, data)) => self.input(&id, stream, data),
                        None => break,
                    }
                } else {
                    let Some(line) = clients[index].request() else { break };
                    self.handle(&line, &mut clients[index]);
                }
            }
            if let (true, Mode::Attached { container }) = (clients[index].closed, &clients[index].mode) {
                let id = container.clone();
                if let Some(container) = self.containers.iter_mut().find(|c| c.id == id && c.stdin_once) {
                    container.stdin_ending = true;
                    container.write_stdin();
                }
            }
        }
        clients.retain(|client| !client.closed);
        self.clients = clients;
    }

    fn input(&mut self, id: &str, stream: u8, data: Vec<u8>) {
        let Some(container) = self.containers.iter_mut().find(|c| c.id == id) else { return };
        if stream != 0 {
            return;
        }
        if data.is_empty() {
            container.stdin_ending |= container.stdin_once;
        }
        container.stdin_pending.extend_from_slice(&data);
        container.write_stdin();
    }

    fn handle(&mut self, line: &str, client: &mut Client) {
        let fields: Vec<&str> = line.split('\t').collect();
        let answer = match fields.as_slice() {
            ["run", ..] if self.leaving || self.fenced => Err("the pod is being stopped".to_owned()),
            ["run", id, dir, log, flags, program, args @ ..] => {
                let request = Request { id, dir, log, flags, program, args };
                match Container::create(&request, client.number) {
                    Ok(container) => {
                        self.containers.push(container);
                        return;
                    }
                    Err(error) => Err(format!("start {program}: {error}")),
                }
            }
            ["kill", id, signal] => self.kill(id, signal),
            ["list"] => {
                for container in &self.containers {
                    client.answer(&match container.phase {
                        Phase::Creating { .. } => format!("creating\t{}", container.id),
                        Phase::Running { pid } => format!("running\t{}\t{pid}", container.id),
                        Phase::Exited { code } => format!("exited\t{}\t{code}", container.id),
                    });
                }
                Ok(())
            }
            ["events"] => {
                client.mode = Mode::Events;
                Ok(())
            }
            ["attach", id]
                if self
                    .containers
                    .iter()
                    .any(|c| c.id == *id && matches!(c.phase, Phase::Running { .. })) =>
            {
                client.answer("ok");
                client.mode = Mode::Attached { container: (*id).to_owned() };
                return;
            }
            ["attach", id] => Err(format!("container {id} is not running")),
            ["resize", id, columns, rows] => self.with(id, |c| {
                if let (true, Some(terminal)) = (c.tty, &c.stdin) {
                    sys::resize(
                        terminal.as_raw_fd(),
                        columns.parse().unwrap_or(80),
                        rows.parse().unwrap_or(24),
                    );
                }
            }),
            ["reopen", id] => self.with(id, |c| c.log.reopen()),
            ["forget", id] => {
                self.containers.retain(|c| c.id != *id || !matches!(c.phase, Phase::Exited { .. }));
                Ok(())
            }
            ["tmpfs", path, options] => {
                sys::mount_at("tmpfs", path, "tmpfs", sys::MS_NOSUID | sys::MS_NODEV, options)
                    .map_err(|e| e.to_string())
            }
            ["fence", stop, kill] => match (stop.parse(), kill.parse()) {
                (Ok(stop), Ok(kill)) => {
                    self.fence = Some((stop, kill));
                    self.fenced = false;
                    self.enforce_fence();
                    Ok(())
                }
                _ => Err("not a time".to_owned()),
            },
            ["exit"] => {
                self.leaving = true;
                self.kill_all();
                self.kill_creators();
                Ok(())
            }
            _ => Err(format!("unknown request {:?}", fields.first().unwrap_or(&""))),
        };
        client.answer(&answer.map_or_else(|error| format!("err\t{error}"), |()| "ok".to_owned()));
    }

    fn with(&mut self, id: &str, act: impl FnOnce(&mut Container)) -> Result<(), String> {
        self.containers.iter_mut().find(|c| c.id == id).map(act).ok_or_else(|| format!("no container {id}"))
    }

    /// Signals go through the shim because it also reaps: the number cannot have been reused.
    fn kill(&mut self, id: &str, signal: &str) -> Result<(), String> {
        let signal = signal.parse().map_err(|_| "not a signal number".to_owned())?;
        let container =
            self.containers.iter().find(|c| c.id == id).ok_or_else(|| format!("no container {id}"))?;
        match container.phase {
            Phase::Running { pid } => sys::send_signal(pid, signal).map_err(|error| error.to_string()),
            Phase::Creating { creator, .. } => {
                sys::send_signal(creator, signal).map_err(|error| error.to_string())
            }
            Phase::Exited { .. } => Ok(()),
        }
    }

    fn kill_all(&mut self) {
        self.signal_all(sys::SIGKILL);
    }

    fn signal_all(&mut self, signal: i32) {
        for container in &self.containers {
            if let Phase::Running { pid } = container.phase {
                let _ = sys::send_signal(pid, signal);
            }
        }
    }

    /// One that hangs must not keep the pod from going. What it leaves behind is in the pod's cgroup.
    fn kill_creators(&mut self) {
        for container in &self.containers {
            if let Phase::Creating { creator, .. } = container.phase {
                let _ = sys::send_signal(creator, sys::SIGKILL);
            }
        }
    }

    /// Nobody is asked: who could move the fence may be dead. The shim goes with the containers, so that nothing is
    /// left that could start one.
    fn enforce_fence(&mut self) {
        let Some((stop, kill)) = self.fence else { return };
        let now = sys::boot_millis();
        if now >= stop && !self.fenced {
            self.fenced = true;
            self.signal_all(sys::SIGTERM);
        }
        if now >= kill && !self.leaving {
            self.leaving = true;
            self.kill_all();
            self.kill_creators();
        }
    }
}

fn broadcast(clients: &mut [Client], id: &str, stream: u8, data: &[u8]) {
    for client in clients.iter_mut() {
        if matches!(&client.mode, Mode::Attached { container } if container == id) {
            client.frame(stream, data);
        }
    }
}
