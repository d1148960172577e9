//! `kubectl logs`: reads the files the shim writes.

use std::io::SeekFrom;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use jiff::{SignedDuration, Timestamp};
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, BufReader};
use tokio::sync::mpsc;

use super::route::Query;
use super::{Body, streamed, text};
use crate::node::Shared;
use crate::pod::{plan, spec};
use crate::runtime::ContainerPhase;

/// How often a followed file is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Pieces on their way to the client; when it reads slowly, reading the file waits.
const PIECES: usize = 32;

#[derive(Clone, Debug, Default)]
struct Options {
    follow: bool,
    previous: bool,
    timestamps: bool,
    tail: Option<usize>,
    since: Option<Timestamp>,
    limit: Option<u64>,
    stream: Option<&'static str>,
}

impl Options {
    fn parse(query: &Query) -> Result<Options, String> {
        let number = |name: &str| {
            query
                .get(name)
                .map(|v| v.parse::<i64>().map_err(|_| format!("invalid {name}: {v:?}")))
                .transpose()
        };
        let since_seconds = number("sinceSeconds")?
            .and_then(|s| Timestamp::now().checked_sub(SignedDuration::from_secs(s)).ok());
        let since_time = query
            .get("sinceTime")
            .map(|t| t.parse::<Timestamp>().map_err(|e| format!("invalid sinceTime: {e}")))
            .transpose()?;
        Ok(Options {
            follow: query.flag("follow"),
            previous: query.flag("previous"),
            timestamps: query.flag("timestamps"),
            tail: number("tailLines")?.and_then(|n| usize::try_from(n).ok()),
            since: since_seconds.or(since_time),
            limit: number("limitBytes")?.and_then(|n| u64::try_from(n).ok()),
            stream: match query.get("stream") {
                Some("Stdout") => Some("stdout"),
                Some("Stderr") => Some("stderr"),
                _ => None,
            },
        })
    }
}

pub(super) async fn answer(
    shared: &Arc<Shared>,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &Query,
) -> Response<Body> {
    let options = match Options::parse(query) {
        Ok(options) => options,
        Err(why) => return text(StatusCode::BAD_REQUEST, why),
    };
    let Some(object) = shared.find(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod {namespace}/{pod} is not on this node"));
    };
    if spec::container(&object, container).is_none() {
        return text(StatusCode::BAD_REQUEST, format!("container {container} is not valid for pod {pod}"));
    }
    let uid = spec::uid(&object).to_owned();
    let state = shared.ctx.runtime.pod(&uid).await.unwrap_or_default();
    let mut attempts: Vec<_> = state.containers.iter().filter(|c| c.name == container).collect();
    attempts.sort_by_key(|c| std::cmp::Reverse(c.attempt));
    let Some(chosen) = attempts.get(usize::from(options.previous)) else {
        let what = if options.previous { "previous terminated container" } else { "container" };
        let message = format!("{what} \"{container}\" in pod \"{pod}\" is waiting to start or not found");
        return text(StatusCode::BAD_REQUEST, message);
    };
    let path = shared.ctx.log_path(&uid, container, chosen.attempt);
    let (sender, receiver) = mpsc::channel(PIECES);
    let (shared, id, name) = (shared.clone(), chosen.id.clone(), container.to_owned());
    tokio::spawn(async move {
        let alive = || async {
            let state = shared.ctx.runtime.pod(&uid).await.unwrap_or_default();
            plan::latest(&state, &name)
                .is_some_and(|c| c.id == id && matches!(c.phase, ContainerPhase::Running { .. }))
        };
        let mut reader = Reader { options, sender, sent: 0 };
        if let Err(error) = reader.run(&path, alive).await {
            let _ = reader.sender.send(Err(error)).await;
        }
    });
    streamed(tokio_stream::wrappers::ReceiverStream::new(receiver))
}

struct Reader {
    options: Options,
    sender: mpsc::Sender<std::io::Result<Bytes>>,
    sent: u64,
}

impl Reader {
    async fn run<F: Future<Output = bool>>(
        &mut self,
        path: &Path,
        alive: impl Fn() -> F,
    ) -> std::io::Result<()> {
        let mut older = rotated(path);
        older.push(path.to_owned());
        let start = self.find_start(&older).await?;
        let (skip_files, offset) = start;
        let last = older.len() - 1;
        for (index, file) in older.iter().enumerate().skip(skip_files) {
            let from = if index == skip_files { offset } else { 0 };
            let follow = self.options.follow && index == last;
            if !self.copy(file, from, follow, &alive).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Where the last `tail` lines begin: which file, which byte.
    async fn find_start(&self, files: &[PathBuf]) -> std::io::Result<(usize, u64)> {
        let Some(mut wanted) = self.options.tail else { return Ok((0, 0)) };
        for (index, file) in files.iter().enumerate().rev() {
            let Ok(mut file) = File::open(file).await else { continue };
            let mut position = file.seek(SeekFrom::End(0)).await?;
            if wanted == 0 {
                return Ok((index, position));
            }
            let mut buffer = vec![0u8; 64 * 1024];
            let mut newest = true;
            while position > 0 {
                let size = position.min(buffer.len() as u64) as usize;
                position -= size as u64;
                file.seek(SeekFrom::Start(position)).await?;
                file.read_exact(&mut buffer[..size]).await?;
                for at in (0..size).rev().filter(|at| buffer[*at] == b'\n') {
                    // The newline that ends the file ends the last line, it does not begin another.
                    if std::mem::take(&mut newest) {
                        continue;
                    }
                    wanted -= 1;
                    if wanted == 0 {
                        return Ok((index, position + at as u64 + 1));
                    }
                }
            }
            // The first line of the file has no newline before it.
            if !newest {
                wanted -= 1;
                if wanted == 0 {
                    return Ok((index, 0));
                }
            }
        }
        Ok((0, 0))
    }

    /// Sends a file from a byte on. False: the client has enough or is gone.
    async fn copy<F: Future<Output = bool>>(
        &mut self,
        path: &Path,
        from: u64,
        follow: bool,
        alive: &impl Fn() -> F,
    ) -> std::io::Result<bool> {
        let mut file = match File::open(path).await {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !follow => return Ok(true),
            Err(error) => return Err(error),
        };
        let mut inode = inode_of(path);
        file.seek(SeekFrom::Start(from)).await?;
        let mut reader = BufReader::with_capacity(64 * 1024, file);
        let mut line = Vec::new();
        let mut batch = Vec::new();
        loop {
            let before_end = !follow || alive().await;
            loop {
                let count = reader.read_until(b'\n', &mut line).await?;
                if count == 0 || line.last() != Some(&b'\n') {
                    break;
                }
                let enough = !self.render(&line, &mut batch);
                line.clear();
                if (batch.len() > 32 * 1024 || enough) && (!self.send(&mut batch).await || enough) {
                    return Ok(false);
                }
            }
            if !self.send(&mut batch).await {
                return Ok(false);
            }
            if !follow || !before_end {
                return Ok(true);
            }
            // Rotated under us: what comes next is in a new file under the old name.
            let now = inode_of(path);
            if now.is_some() && now != inode {
                inode = now;
                line.clear();
                reader = BufReader::with_capacity(64 * 1024, File::open(path).await?);
                continue;
            }
            tokio::select! {
                () = self.sender.closed() => return Ok(false),
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn send(&mut self, batch: &mut Vec<u8>) -> bool {
        if batch.is_empty() {
            return !self.sender.is_closed();
        }
        self.sender.send(Ok(Bytes::from(std::mem::take(batch)))).await.is_ok()
    }

    /// Appends a record as the client wants it. False: the byte limit is reached.
    fn render(&mut self, record: &[u8], out: &mut Vec<u8>) -> bool {
        let Some((time, stream, full, message)) = parse(record) else { return true };
        if self.options.stream.is_some_and(|wanted| wanted.as_bytes() != stream) {
            return true;
        }
        if let Some(since) = self.options.since {
            let written: Option<Timestamp> = std::str::from_utf8(time).ok().and_then(|t| t.parse().ok());
            if written.is_some_and(|at| at < since) {
                return true;
            }
        }
        let start = out.len();
        if self.options.timestamps {
            out.extend_from_slice(time);
            out.push(b' ');
        }
        out.extend_from_slice(message);
        if full {
            out.push(b'\n');
        }
        self.sent += (out.len() - start) as u64;
        match self.options.limit {
            Some(limit) if self.sent >= limit => {
                out.truncate(out.len() - (self.sent - limit) as usize);
                false
            }
            _ => true,
        }
    }
}

/// `time stream tag message\n`.
fn parse(record: &[u8]) -> Option<(&[u8], &[u8], bool, &[u8])> {
    let record = record.strip_suffix(b"\n").unwrap_or(record);
    let mut parts = record.splitn(4, |b| *b == b' ');
    let (time, stream, tag) = (parts.next()?, parts.next()?, parts.next()?);
    Some((time, stream, tag.first() == Some(&b'F'), parts.next().unwrap_or_default()))
}

fn inode_of(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|m| m.ino())
}

/// Rotated files of a log, oldest first: `0.log.<time>`.
fn rotated(path: &Path) -> Vec<PathBuf> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else {
        return Vec::new();
    };
    let prefix = format!("{name}.");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_str().is_some_and(|n| n.starts_with(&prefix)))
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &str, options: Options) -> String {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("0.log");
        std::fs::write(&path, text).expect("log");
        let (sender, mut receiver) = mpsc::channel(PIECES);
        Reader { options, sender, sent: 0 }.run(&path, || async { false }).await.expect("read");
        let mut out = Vec::new();
        while let Some(piece) = receiver.recv().await {
            out.extend_from_slice(&piece.expect("piece"));
        }
        String::from_utf8(out).expect("text")
    }

    const LOG: &str = "2026-01-01T00:00:01.000000000Z stdout F one\n2026-01-01T00:00:02.000000000Z stderr F two\n2026-01-01T00:00:03.000000000Z stdout P thr\n2026-01-01T00:00:04.000000000Z stdout F ee\n";

    #[tokio::test]
    async fn lines_are_put_together_and_cut_as_asked() {
        assert_eq!(read(LOG, Options::default()).await, "one\ntwo\nthree\n");
        assert_eq!(read(LOG, Options { tail: Some(1), ..Default::default() }).await, "ee\n");
        assert_eq!(read(LOG, Options { tail: Some(3), ..Default::default() }).await, "two\nthree\n");
        assert_eq!(read(LOG, Options { tail: Some(0), ..Default::default() }).await, "");
        assert_eq!(read(LOG, Options { tail: Some(99), ..Default::default() }).await, "one\ntwo\nthree\n");
        assert_eq!(read(LOG, Options { limit: Some(5), ..Default::default() }).await, "one\nt");
        let since = "2026-01-01T00:00:02Z".parse().ok();
        assert_eq!(read(LOG, Options { since, ..Default::default() }).await, "two\nthree\n");
        assert_eq!(
            read(LOG, Options { stream: Some("stderr"), timestamps: true, ..Default::default() }).await,
            "2026-01-01T00:00:02.000000000Z two\n"
        );
    }
}
