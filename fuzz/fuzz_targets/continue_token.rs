//! Continue tokens. The server's own source is compiled in, with nothing but its error type in place of the server.
#![no_main]
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/apiserver/src/registry/token.rs"]
mod token;

mod http {
    pub mod status {
        #[derive(Debug)]
        pub struct Failure(String);

        impl Failure {
            pub fn bad_request(text: impl Into<String>) -> Self {
                Self(text.into())
            }
        }

        pub type Result<T> = std::result::Result<T, Failure>;
    }
}

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(token) = token::Continue::decode(text) {
        assert!(!token.after.split('/').any(|part| part == ".."), "a token leaves its list: {}", token.after);
        let again = token::Continue::decode(&token::Continue::encode(token.revision, &token.after));
        let again = again.expect("what was decoded is encoded in a form that decodes");
        assert_eq!((again.revision, again.after), (token.revision, token.after));
    }
});
