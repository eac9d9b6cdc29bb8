//! Limits of Limitador.
pub(super) const ABOUT: &str = "";
pub(super) fn translate(_: &[&str], _: &mut super::Reports) -> Vec<super::DraftRule> {
    Vec::new()
}
