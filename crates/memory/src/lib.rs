//! The memory of the `tombolo` program: its allocator, and code that it no longer needs.
//!
//! An API server, its controllers and an agent read and write JSON all day: many small allocations, freed soon, by two
//! threads. glibc's allocator took a quarter of a site's time (`perf`). Left to itself mimalloc prefers speed to size: it asks
//! for huge pages and keeps what was freed, and a site with ten pods took 123 MB with it. Switched off, that was 62 MB; it must
//! happen before the first allocation, which comes before `main`.

use std::io::BufRead;
use std::ops::Range;
use std::time::Duration;

use libmimalloc_sys::{mi_option_set, mi_option_t};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

// Not named by the bindings; their order in `mimalloc.h` is part of its interface.
const ARENA_EAGER_COMMIT: mi_option_t = 4;
const PURGE_DELAY: mi_option_t = 15;

/// Pages are asked for when they are needed, and given back when they are free.
extern "C" fn settle() {
    // SAFETY: the function only stores a number in a table of the allocator, and no other thread exists yet.
    unsafe {
        mi_option_set(ARENA_EAGER_COMMIT, 0);
        mi_option_set(PURGE_DELAY, 0);
    }
}

// SAFETY: the section holds pointers to functions without arguments, which the C library calls in order of the number.
// mimalloc's own is the 101st.
#[used]
#[unsafe(link_section = ".init_array.00100")]
static SETTLE: extern "C" fn() = settle;

/// Whether the program that this crate was linked into has its allocator so.
pub fn is_set_up() -> bool {
    // SAFETY: reads a number from the allocator's table.
    unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) == 0 }
}

/// How often a process looks whether it rests.
pub const LOOK: Duration = Duration::from_secs(5);
/// A process that ran for longer between two looks is at work, and its code stays mapped.
const AT_WORK: Duration = Duration::from_millis(500);

/// The program's code, of which a process that rests keeps nothing mapped. Most of the program is code for something else
/// than what the process does, and most of the rest is needed for a moment every ten seconds. What runs again is mapped
/// again: nothing is read from disk for it while the kernel keeps the file's pages, they are merely no longer this
/// process's. Of an idle agent's 31 MB this was 20. A look costs about two milliseconds.
#[derive(Default)]
pub struct Code {
    /// Processor time of this process at the last look.
    looked: Duration,
}

impl Code {
    /// To be called once per [`LOOK`].
    pub fn look(&mut self) -> std::io::Result<()> {
        if self.rests(processor_time()?) { let_go_of_code() } else { Ok(()) }
    }

    fn rests(&mut self, ran: Duration) -> bool {
        ran - std::mem::replace(&mut self.looked, ran) < AT_WORK
    }
}

/// How long all threads of this process ran so far.
fn processor_time() -> std::io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the one structure that it is given.
    match unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) } {
        0 => Ok(Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn let_go_of_code() -> std::io::Result<()> {
    let smaps = std::io::BufReader::new(std::fs::File::open("/proc/self/smaps")?);
    for mapping in untouched(smaps)? {
        // SAFETY: the mapping is of a file, cannot be written, and no page of it differs from the file: the kernel maps the
        // same bytes again as soon as one is touched.
        unsafe { libc::madvise(mapping.start as *mut libc::c_void, mapping.len(), libc::MADV_DONTNEED) };
    }
    Ok(())
}

/// Read-only mappings of the program that hold nothing but what is in its file: no relocated table, no breakpoint. The
/// program is what is mapped first; it stays where it is, other than libraries, in whose place something else may come.
fn untouched(mut smaps: impl BufRead) -> std::io::Result<Vec<Range<usize>>> {
    let mut found = Vec::new();
    let mut program: Option<String> = None;
    let mut current = None;
    let mut line = String::new();
    while smaps.read_line(&mut line)? > 0 {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Anonymous:"), Some("0")) => found.extend(current.take()),
            (Some(range), Some(rights)) if range.contains('-') => {
                let path = words.nth(3).filter(|path| path.starts_with('/'));
                let is_program =
                    path.is_some_and(|path| program.get_or_insert_with(|| path.to_owned()) == path);
                let is_candidate = is_program && matches!(rights, "r--p" | "r-xp");
                current = range.split_once('-').filter(|_| is_candidate).and_then(|(start, end)| {
                    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
                });
            }
            _ => {}
        }
        line.clear();
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped_code() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("this process has a status");
        let line = status.lines().find_map(|l| l.strip_prefix("RssFile:")).expect("it says what is mapped");
        line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number of kilobytes")
    }

    #[test]
    fn only_what_equals_its_file_is_let_go() {
        let smaps = "\
0800-1000 rw-p 00000000 00:00 0
Anonymous:             0 kB
1000-3000 r--p 00000000 08:01 7                          /bin/it
Rss:                   8 kB
Anonymous:             0 kB
3000-5000 r-xp 00002000 08:01 7                          /bin/it
Anonymous:             0 kB
5000-6000 r--p 00004000 08:01 7                          /bin/it
Anonymous:             4 kB
6000-7000 rw-p 00005000 08:01 7                          /bin/it
Anonymous:             0 kB
7000-8000 r--p 00000000 00:00 0
Anonymous:             0 kB
7000-8000 r-xp 00000000 08:01 9                          /lib/libc.so
Anonymous:             0 kB
8000-9000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
";
        assert_eq!(untouched(smaps.as_bytes()).expect("mappings"), [0x1000..0x3000, 0x3000..0x5000]);
    }

    #[test]
    fn code_is_let_go_after_work_and_not_during_it() {
        let milliseconds = Duration::from_millis;
        let mut code = Code::default();
        assert!(!code.rests(milliseconds(900)), "it starts");
        assert!(code.rests(milliseconds(950)), "a heartbeat");
        assert!(!code.rests(milliseconds(1900)), "it is at work");
        assert!(code.rests(milliseconds(1901)), "the work is done");
    }

    #[test]
    fn the_program_runs_on_without_the_code_it_let_go() {
        let before = mapped_code();
        let_go_of_code().expect("let go");
        let after = mapped_code();
        assert!(after < before, "{before} KB, then {after} KB");
    }
}
