//! Certificates generated for a test.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SerialNumber};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A certificate authority and the certificates it has signed, as PEM files in a folder: `ca.crt`, `NAME.crt` and
/// `NAME.key`.
pub(crate) struct Certificates {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Certificates {
    /// A new authority with a certificate for `server` and one for `client`.
    pub(crate) fn new() -> Certificates {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        fs::write(folder.path().join("ca.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
        let certificates = Certificates { folder, issuer: Issuer::new(params, key) };
        certificates.sign("server", 1);
        certificates.sign("client", 2);
        certificates
    }

    /// Signs a new certificate for 127.0.0.1 and replaces any existing one of the same name.
    pub(crate) fn sign(&self, name: &str, serial: u64) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        // The key is replaced first: a reader that sees the new key with the old certificate finds a mismatch and
        // retries.
        self.replace(&format!("{name}.key"), &key.serialize_pem());
        self.replace(&format!("{name}.crt"), &signed.pem());
    }

    /// Renames a new file over the old one, as certificate managers do.
    fn replace(&self, name: &str, text: &str) {
        let (new, path) = (self.folder.path().join("new"), self.folder.path().join(name));
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The path of one of the files.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }
}
