//! A serving process's ear for commands on the same machine: a socket in its data folder that only its owner may open.
//!
//! One question and one answer per connection, a line of JSON each.

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

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Question {
    /// Copy the store into this new folder.
    Backup(PathBuf),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Answer {
    Revision(u64),
    Refused(String),
}

fn socket(data_dir: &Path) -> PathBuf {
    data_dir.join("control.sock")
}

/// Answers until the process ends. The folder must be ours already: a socket that is found there is a dead one's.
pub fn listen(data_dir: &Path, store: Arc<dyn Store>) -> Result<()> {
    let path = socket(data_dir);
    let _ = std::fs::remove_file(&path);
    let listener =
        UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    tokio::spawn(async move {
        // One after the other: who asks for a second copy at the same time waits.
        while let Ok((stream, _)) = listener.accept().await {
            if let Err(error) = answer(stream, &*store).await {
                tracing::debug!(%error, "a local command went away");
            }
        }
    });
    Ok(())
}

async fn answer(mut stream: UnixStream, store: &dyn Store) -> Result<()> {
    let mut line = String::new();
    BufReader::new((&mut stream).take(LONGEST)).read_line(&mut line).await?;
    let answer = match serde_json::from_str(&line) {
        Ok(Question::Backup(into)) => match store.backup(&into).await {
            Ok(revision) => Answer::Revision(revision),
            Err(error) => Answer::Refused(error.to_string()),
        },
        Err(_) => {
            Answer::Refused("this server does not know that command; is it older than the client?".into())
        }
    };
    stream.write_all(&serde_json::to_vec(&answer)?).await?;
    Ok(stream.shutdown().await?)
}

/// Asks the process that serves from `data_dir` for a copy; `None` if there is no such process.
pub async fn backup(data_dir: &Path, into: &Path) -> Result<Option<u64>> {
    let Ok(mut stream) = UnixStream::connect(socket(data_dir)).await else { return Ok(None) };
    let mut question = serde_json::to_vec(&Question::Backup(into.to_owned()))?;
    question.push(b'\n');
    stream.write_all(&question).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    match serde_json::from_str(&text).context("the serving process ended before the copy was made")? {
        Answer::Revision(revision) => Ok(Some(revision)),
        Answer::Refused(why) => bail!("{why}"),
    }
}
