//! Service-account tokens: JWTs signed with the cluster's P-256 key (ES256).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
};
use serde_json::{Value, json};

use crate::bootstrap::keys::KeyError;

pub struct Signer {
    key: EcdsaKeyPair,
    random: SystemRandom,
    key_id: String,
}

impl Signer {
    pub fn new(pem_text: &str) -> Result<Self, KeyError> {
        let damaged = |e: &dyn std::fmt::Display| KeyError::Damaged(format!("the token key: {e}"));
        let block = pem::parse(pem_text).map_err(|e| damaged(&e))?;
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, block.contents(), &random)
            .map_err(|e| damaged(&e))?;
        let digest = ring::digest::digest(&ring::digest::SHA256, key.public_key().as_ref());
        Ok(Self { key_id: BASE64.encode(digest), key, random })
    }

    pub fn sign(&self, claims: &Value) -> String {
        let header = json!({"alg": "ES256", "kid": self.key_id});
        let text = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
        let signature = self
            .key
            .sign(&self.random, text.as_bytes())
            .expect("the system's random source works; it made the key");
        format!("{text}.{}", BASE64.encode(signature))
    }

    /// The claims of a token that this cluster signed. Times and audiences are for the caller to judge.
    pub fn verify(&self, token: &str) -> Option<Value> {
        let (text, signature) = token.rsplit_once('.')?;
        let (header, claims) = text.split_once('.')?;
        let header: Value = serde_json::from_slice(&BASE64.decode(header).ok()?).ok()?;
        if header["alg"] != "ES256" {
            return None;
        }
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key().as_ref());
        public.verify(text.as_bytes(), &BASE64.decode(signature).ok()?).ok()?;
        serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()
    }

    /// The public key, for `/openid/v1/jwks`.
    pub fn jwks(&self) -> Value {
        // An uncompressed point: 04, then x and y of 32 bytes each.
        let point = self.key.public_key().as_ref();
        let (x, y) = (BASE64.encode(&point[1..33]), BASE64.encode(&point[33..65]));
        json!({"keys": [{"use": "sig", "kty": "EC", "kid": self.key_id, "crv": "P-256", "alg": "ES256", "x": x, "y": y}]})
    }
}

/// Whether a token might be one of ours: worth verifying.
pub fn looks_like_jwt(token: &str) -> bool {
    token.split('.').count() == 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tokens_of_this_key_verify() {
        let signer = || Signer::new(&rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
        let (ours, theirs) = (signer(), signer());
        let token = ours.sign(&json!({"sub": "a"}));
        assert_eq!(ours.verify(&token).unwrap()["sub"], "a");
        assert!(theirs.verify(&token).is_none());
        let forged = token.replace('.', "..");
        assert!(ours.verify(&forged).is_none());
        let (text, _) = token.rsplit_once('.').unwrap();
        assert!(ours.verify(&format!("{text}.AAAA")).is_none());
    }
}
