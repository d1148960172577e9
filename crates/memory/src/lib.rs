//! The allocator of the `tombolo` program.
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
