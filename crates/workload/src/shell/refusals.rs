//! What the server would not let controllers make, by the uid of the object it was for.

use parking_lot::Mutex;
use std::collections::HashMap;

/// At most one entry per object; gone with the next success, or with the object.
#[derive(Default)]
pub struct Refusals(Mutex<HashMap<String, String>>);

impl Refusals {
    pub fn note(&self, uid: &str, why: String) {
        self.0.lock().insert(uid.to_owned(), why);
    }

    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    pub fn of(&self, uid: &str) -> Option<String> {
        self.0.lock().get(uid).cloned()
    }
}
