//! Container output to a file, one line per record: `time stream tag text`.
//!
//! This is the format every log collector for Kubernetes reads: the tag is `F` for a full line and
//! `P` for a part of one (longer than the buffer, or the end of the output without a newline).

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::sys;

const LONGEST_LINE: usize = 16 * 1024;

pub struct Log {
    path: PathBuf,
    file: Option<File>,
}

impl Log {
    pub fn open(path: &Path) -> io::Result<Log> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Log { path: path.to_owned(), file: Some(file) })
    }

    /// Called after the file was renamed away by rotation.
    pub fn reopen(&mut self) {
        self.file = File::options().create(true).append(true).open(&self.path).ok();
    }

    fn record(&mut self, stream: &str, tag: &str, text: &[u8]) {
        let mut line = Vec::with_capacity(text.len() + 48);
        let _ = write!(line, "{} {stream} {tag} ", timestamp(sys::now()));
        line.extend_from_slice(text);
        line.push(b'\n');
        if self.file.is_none() {
            self.reopen();
        }
        // A full disk must not stop the container: the line is lost, the pipe keeps flowing.
        if let Some(file) = &mut self.file {
            let _ = file.write_all(&line);
        }
    }
}

/// Cuts one stream of a container into lines.
pub struct Lines {
    stream: &'static str,
    rest: Vec<u8>,
}

impl Lines {
    pub fn new(stream: &'static str) -> Lines {
        Lines { stream, rest: Vec::new() }
    }

    pub fn push(&mut self, log: &mut Log, mut data: &[u8]) {
        while let Some(end) = data.iter().position(|b| *b == b'\n') {
            let (line, after) = (&data[..end], &data[end + 1..]);
            if self.rest.is_empty() && line.len() <= LONGEST_LINE {
                log.record(self.stream, "F", line);
            } else {
                self.rest.extend_from_slice(line);
                self.flush_parts(log);
                log.record(self.stream, "F", &std::mem::take(&mut self.rest));
            }
            data = after;
        }
        self.rest.extend_from_slice(data);
        self.flush_parts(log);
    }

    fn flush_parts(&mut self, log: &mut Log) {
        while self.rest.len() > LONGEST_LINE {
            let tail = self.rest.split_off(LONGEST_LINE);
            log.record(self.stream, "P", &std::mem::replace(&mut self.rest, tail));
        }
    }

    pub fn finish(&mut self, log: &mut Log) {
        if !self.rest.is_empty() {
            log.record(self.stream, "P", &std::mem::take(&mut self.rest));
        }
    }
}

/// RFC 3339 in UTC with nanoseconds.
pub fn timestamp((seconds, nanos): (i64, i64)) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days since 0000-03-01, in eras of 400 years: leap days fall at the end of each cycle.
    let z = days + 719_468;
    let (era, doe) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + i64::from(month <= 2);
    let (h, m, s) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{nanos:09}Z")
}
