//! Files that stay where they are meant to be.

mod folder;
mod private;

pub use folder::Folder;
pub use private::{create_private_dir, write_private};
