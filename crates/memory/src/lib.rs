//! The memory of the `tombolo` program: its allocator, and code that it no longer needs.
//!
//! An API server, its controllers and an agent read and write JSON all day: many small allocations, freed soon, by two
//! threads. glibc's allocator took a quarter of a site's time (`perf`). Left to itself mimalloc prefers speed to size: it asks
//! for huge pages and keeps what was freed, and a site with ten pods took 123 MB with it. Switched off, that was 62 MB; it must
//! happen before the first allocation, which comes before `main`.

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

/// Lets go of the program's code: what runs again is mapped again, what only start-up needed is not. Nothing is read from
/// disk for it while the kernel keeps the file's pages; they are merely no longer this process's. Of an agent's 31 MB this
/// was 16.
pub fn let_go_of_code() -> std::io::Result<()> {
    for mapping in untouched(&std::fs::read_to_string("/proc/self/smaps")?) {
        // SAFETY: the mapping is of a file, cannot be written, and no page of it differs from the file: the kernel maps the
        // same bytes again as soon as one is touched.
        unsafe { libc::madvise(mapping.start as *mut libc::c_void, mapping.len(), libc::MADV_DONTNEED) };
    }
    Ok(())
}

/// Read-only mappings of files that hold nothing but what is in the file: no relocated table, no breakpoint.
fn untouched(smaps: &str) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("Anonymous:"), Some("0")) => found.extend(current.take()),
            (Some(range), Some("r--p" | "r-xp")) => {
                let of_a_file = words.nth(3).is_some_and(|path| path.starts_with('/'));
                current = range.split_once('-').filter(|_| of_a_file).and_then(|(start, end)| {
                    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
                });
            }
            (Some(range), Some(_)) if range.contains('-') => current = None,
            _ => {}
        }
    }
    found
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
8000-9000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
";
        assert_eq!(untouched(smaps), [0x1000..0x3000, 0x3000..0x5000]);
    }

    #[test]
    fn the_program_runs_on_without_the_code_it_let_go() {
        let before = mapped_code();
        let_go_of_code().expect("let go");
        let after = mapped_code();
        assert!(after < before, "{before} KB, then {after} KB");
    }
}
