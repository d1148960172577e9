//! The real kubectl, as a user types it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::{Fixture, wait_for};

/// kubectl with one kubeconfig and a cache of its own.
#[derive(Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    netns: Option<String>,
}

impl Kubectl {
    pub fn new(kubeconfig: &Path) -> Self {
        Self::with(Fixture::Kubectl, kubeconfig)
    }

    /// Another release of kubectl.
    pub fn with(program: Fixture, kubeconfig: &Path) -> Self {
        Self { program: program.must(), kubeconfig: kubeconfig.to_owned(), netns: None }
    }

    /// Run it inside a named network namespace.
    pub fn inside(mut self, netns: &str) -> Self {
        self.netns = Some(netns.to_owned());
        self
    }

    /// The command line, for tests that need its pipes.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = match &self.netns {
            Some(netns) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", netns]).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        let cache = self.kubeconfig.with_extension("cache");
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(cache).args(args);
        command
    }

    /// Runs it and gives what it printed, its complaints and warnings last; a failure is an error with the same.
    pub fn run(&self, args: &[&str]) -> Result<String> {
        self.run_with_input(args, "")
    }

    pub fn run_with_input(&self, args: &[&str], input: &str) -> Result<String> {
        self.ended(args, input).map(|(out, complaints)| out + &complaints)
    }

    /// Its standard output alone, for what a container printed: kubectl 1.30 at times complains beside it that it did not
    /// know yet what to do with the empty message by which a server begins.
    pub fn output_with_input(&self, args: &[&str], input: &str) -> Result<String> {
        self.ended(args, input).map(|(out, _)| out)
    }

    fn ended(&self, args: &[&str], input: &str) -> Result<(String, String)> {
        let mut child = self
            .command(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("could not start kubectl")?;
        child.stdin.take().context("kubectl has a pipe for input")?.write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        if !output.status.success() {
            bail!("kubectl {} failed ({}): {out}{err}", args.join(" "), output.status);
        }
        Ok((out, err))
    }

    /// Applies a manifest given as text.
    pub fn apply(&self, manifest: &str) -> Result<String> {
        self.run_with_input(&["apply", "-f", "-"], manifest)
    }

    /// Adds a node that takes this many pods. It is only an object: nothing runs them.
    pub fn add_node(&self, name: &str, pods: u32) -> Result<()> {
        self.apply(&format!("{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}}}"))?;
        let room = format!(r#"{{"cpu":"64","memory":"256Gi","pods":"{pods}"}}"#);
        let ready = r#"{"type":"Ready","status":"True","reason":"Test","message":"a node object only"}"#;
        let status =
            format!(r#"{{"status":{{"capacity":{room},"allocatable":{room},"conditions":[{ready}]}}}}"#);
        self.run(&["patch", "node", name, "--subresource=status", "--type=merge", "-p", &status])?;
        self.run(&["patch", "node", name, "--type=merge", "-p", r#"{"spec":{"taints":null}}"#]).map(drop)
    }

    /// What a pod serves at a path over HTTP, through `kubectl port-forward`.
    pub fn forwarded(&self, namespace: &str, pod: &str, port: u16, path: &str) -> Result<String> {
        let mut command =
            self.command(&["port-forward", "-n", namespace, &format!("pod/{pod}"), &format!(":{port}")]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        // Kept until the end: kubectl dies when nobody reads what it prints.
        let mut said = BufReader::new(child.stdout.take().context("a pipe")?);
        said.read_line(&mut line)?;
        let page = (|| {
            let port = line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next());
            let mut stream = TcpStream::connect(format!("127.0.0.1:{}", port.context(line.clone())?))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
            let mut page = Vec::new();
            // How the connection ends is kubectl's affair; what came through it is ours.
            let ended = stream.read_to_end(&mut page);
            ensure!(!page.is_empty(), "nothing came: {ended:?}");
            Ok(String::from_utf8_lossy(&page).into_owned())
        })();
        let _ = child.kill();
        let _ = child.wait();
        page
    }

    /// Waits until the command prints `wanted` somewhere.
    pub fn until(&self, args: &[&str], wanted: &str, timeout: Duration) -> Result<String> {
        wait_for(&format!("kubectl {} to print {wanted:?}", args.join(" ")), timeout, || {
            let out = self.run(args)?;
            if out.contains(wanted) { Ok(out) } else { bail!("it printed: {out}") }
        })
    }
}
