//! Stands in for the `tombolo` binary in this crate's tests, where the test program cannot be started again
//! to make containers.

fn main() {
    tombolo_node::reexec::maybe_run();
    eprintln!("this program only makes containers for tests");
    std::process::exit(2);
}
