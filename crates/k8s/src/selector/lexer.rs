//! Tokens of the label selector's string form.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    Unknown,
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Word,
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

fn symbol(text: &str) -> Option<Token> {
    Some(match text {
        ")" => Token::Close,
        "," => Token::Comma,
        "!" => Token::Not,
        "==" => Token::DoubleEquals,
        "=" => Token::Equals,
        ">" => Token::Greater,
        "<" => Token::Less,
        "!=" => Token::NotEquals,
        "(" => Token::Open,
        _ => return None,
    })
}

const SYMBOLS: &str = "=!(),><";

/// Splits into tokens with their text; the last one is always [`Token::End`].
pub fn scan(text: &str) -> Vec<(Token, String)> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let Some(first) = rest.chars().next().filter(|c| *c != '\0') else {
            tokens.push((Token::End, String::new()));
            return tokens;
        };
        if SYMBOLS.contains(first) {
            // Two-character operators win over their first character.
            let (token, length) = match rest.get(..2).and_then(symbol) {
                Some(token) => (token, 2),
                None => (symbol(&rest[..1]).unwrap_or(Token::Unknown), 1),
            };
            tokens.push((token, rest[..length].to_owned()));
            rest = &rest[length..];
        } else {
            let end = rest
                .find(|c: char| SYMBOLS.contains(c) || matches!(c, ' ' | '\t' | '\r' | '\n' | '\0'))
                .unwrap_or(rest.len());
            let word = &rest[..end];
            let token = match word {
                "in" => Token::In,
                "notin" => Token::NotIn,
                _ => Token::Word,
            };
            tokens.push((token, word.to_owned()));
            rest = &rest[end..];
        }
    }
}
