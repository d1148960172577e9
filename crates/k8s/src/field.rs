//! Errors about fields, in the words Kubernetes clients and tests match on.

use std::fmt;

/// What is wrong with a field. The variants are the `reason` of a cause in a `Status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    Required,
    Invalid,
    TypeInvalid,
    NotSupported,
    Duplicate,
    Forbidden,
    TooLong,
    TooMany,
    NotFound,
    Internal,
}

/// One problem at one path. `Display` is the text of upstream's field errors:
/// `spec.replicas: Invalid value: -1: must be greater than or equal to 0`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldError {
    pub kind: ErrorKind,
    pub path: String,
    /// The offending value as JSON text; empty where the kind does not show it.
    pub value: String,
    pub detail: String,
}

impl ErrorKind {
    /// The machine-readable cause type.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::NotFound => "FieldValueNotFound",
            Self::Internal => "InternalError",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
            Self::Internal => "Internal error",
        }
    }
}

impl FieldError {
    pub fn required(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Required, path: path.into(), value: String::new(), detail: detail.into() }
    }

    pub fn forbidden(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Forbidden, path: path.into(), value: String::new(), detail: detail.into() }
    }

    pub fn invalid(path: impl Into<String>, value: &serde_json::Value, detail: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Invalid, path: path.into(), value: value.to_string(), detail: detail.into() }
    }

    pub fn duplicate(path: impl Into<String>, value: &serde_json::Value) -> Self {
        Self {
            kind: ErrorKind::Duplicate,
            path: path.into(),
            value: value.to_string(),
            detail: String::new(),
        }
    }

    /// `Unsupported value: "X": supported values: "A", "B"`.
    pub fn not_supported(path: impl Into<String>, value: &serde_json::Value, allowed: &[&str]) -> Self {
        let quoted: Vec<_> = allowed.iter().map(|a| format!("{a:?}")).collect();
        let detail = if quoted.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", quoted.join(", "))
        };
        Self { kind: ErrorKind::NotSupported, path: path.into(), value: value.to_string(), detail }
    }

    /// The message of a cause: everything after the path.
    pub fn message(&self) -> String {
        let mut out = self.kind.text().to_owned();
        if !self.value.is_empty() {
            out.push_str(": ");
            out.push_str(&self.value);
        }
        if !self.detail.is_empty() {
            out.push_str(": ");
            out.push_str(&self.detail);
        }
        out
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message())
    }
}
