//! A serving process's ear for commands on the same machine: a socket in its data folder that only its owner may open.
//!
//! One question and one answer per connection, a line of JSON each. A copy of the store is made in the data folder, which may
//! be the only one that the process can write to or sees as we do, and is there for as long as the connection is open.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tombolo_store::Store;

/// Longer questions are nobody's.
const LONGEST: u64 = 16 * 1024;
/// The folder for a copy; one at a time.
const COPY: &str = "store.copy";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Question {
    /// Copy the store.
    Backup,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Answer {
    /// The copy is there, of this revision.
    Copied(u64),
    Refused(String),
}

/// A copy of a store, as long as this is held.
pub struct Copy {
    pub folder: PathBuf,
    pub revision: u64,
    _asked: BufReader<UnixStream>,
}

fn socket(data_dir: &Path) -> PathBuf {
    data_dir.join("control.sock")
}

/// Answers until the process ends. The folder must be ours already: a socket that is found there is a dead one's.
pub fn listen(data_dir: &Path, store: Arc<dyn Store>) -> Result<()> {
    let (path, copy) = (socket(data_dir), data_dir.join(COPY));
    let _ = std::fs::remove_file(&path);
    let listener =
        UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    tokio::spawn(async move {
        // One after the other: who asks for a second copy at the same time waits.
        while let Ok((stream, _)) = listener.accept().await {
            if let Err(error) = answer(stream, &copy, &*store).await {
                tracing::debug!(%error, "a local command went away");
            }
            let _ = std::fs::remove_dir_all(&copy);
        }
    });
    Ok(())
}

async fn answer(stream: UnixStream, copy: &Path, store: &dyn Store) -> Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    (&mut stream).take(LONGEST).read_line(&mut line).await?;
    let answer = match serde_json::from_str(&line) {
        Ok(Question::Backup) => {
            // Left by a process that ended meanwhile.
            let _ = std::fs::remove_dir_all(copy);
            match store.backup(copy).await {
                Ok(revision) => Answer::Copied(revision),
                Err(error) => Answer::Refused(error.to_string()),
            }
        }
        Err(_) => {
            Answer::Refused("this server does not know that command; is it older than the client?".into())
        }
    };
    let mut answer = serde_json::to_vec(&answer)?;
    answer.push(b'\n');
    stream.write_all(&answer).await?;
    // Whoever goes away has it, or does not want it any more.
    let mut more = [0];
    while stream.read(&mut more).await? > 0 {}
    Ok(())
}

/// Asks the process that serves from `data_dir` for a copy of its store; `None` if there is no such process.
pub async fn copy(data_dir: &Path) -> Result<Option<Copy>> {
    let Ok(stream) = UnixStream::connect(socket(data_dir)).await else { return Ok(None) };
    let mut stream = BufReader::new(stream);
    let mut question = serde_json::to_vec(&Question::Backup)?;
    question.push(b'\n');
    stream.write_all(&question).await?;
    let mut text = String::new();
    stream.read_line(&mut text).await?;
    match serde_json::from_str(&text).context("the serving process ended before the copy was made")? {
        Answer::Copied(revision) => Ok(Some(Copy { folder: data_dir.join(COPY), revision, _asked: stream })),
        Answer::Refused(why) => bail!("{why}"),
    }
}
