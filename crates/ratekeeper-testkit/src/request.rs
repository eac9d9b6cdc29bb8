//! Requests over several limits, at their worst.

use crate::engine::Engine;
use crate::key_engine::KeyEngines;
use crate::suite;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::test_runner::TestCaseError;
use ratekeeper_core::{Amount, DrawOptions, Draws, Key, Limit, Micros, Op, PermitId, Scope, Span};

/// When they begin to come: in 2023, at an odd microsecond.
const START: Micros = Micros::new(1_700_000_000_123_457);
/// One quota for each of [`suite::laws`].
const QUOTAS: [&str; 9] =
    ["10/s burst 4", "20/s burst 3", "11/s burst 5", "9 per 2s", "12/day", "5/s", "6/s", "7/s", "8/s"];

/// Requests that come one call after the other.
#[derive(Clone, Debug)]
pub(crate) struct Requests(Vec<ModelCall>);

/// Requests that come at once, and how long after those before.
#[derive(Clone, Debug)]
struct ModelCall {
    wait: Span,
    requests: Vec<ModelRequest>,
}

/// One request.
#[derive(Clone, Debug)]
struct ModelRequest {
    kind: ModelRequestKind,
    wishes: Vec<ModelDraw>,
}

/// What a request does under all its limits.
#[derive(Clone, Copy, Debug)]
enum ModelRequestKind {
    Take,
    Look,
    Give,
    Clear,
}

/// One of its limits, by its number, and what it wants of that.
#[derive(Clone, Debug)]
struct ModelDraw {
    key: usize,
    limit: usize,
    units: u32,
    is_shadow: bool,
}

/// Requests over two keys and all laws: several limits each, the same one twice included, some of them shadows. Some of
/// those that come at once are alike.
pub(crate) fn requests() -> impl Strategy<Value = Requests> {
    let wish = (0..2_usize, 0..QUOTAS.len(), 0..4_u32, proptest::bool::weighted(0.2));
    let wish = wish.prop_map(|(key, limit, units, is_shadow)| ModelDraw { key, limit, units, is_shadow });
    let kind = prop_oneof![10 => Just(ModelRequestKind::Take), 1 => Just(ModelRequestKind::Look), 1 => Just(ModelRequestKind::Give), 1 => Just(ModelRequestKind::Clear)];
    let request = (kind, vec(wish, 1..5)).prop_map(|(kind, wishes)| ModelRequest { kind, wishes });
    let alike = (request, 1..4_usize).prop_map(|(request, times)| vec![request; times]);
    let wait = prop_oneof![9 => 0..200_000_u64, 1 => 0..2 * Span::DAY.get()].prop_map(Span::micros);
    let call = (wait, vec(alike, 1..4))
        .prop_map(|(wait, requests)| ModelCall { wait, requests: requests.into_iter().flatten().collect() });
    vec(call, 1..20).prop_map(Requests)
}

impl Requests {
    /// Runs them through an engine and the models, which must tell the same.
    ///
    /// # Errors
    /// They do not: it says where.
    pub(crate) fn check(&self, engine: &mut impl Engine) -> Result<(), TestCaseError> {
        let limits = limits();
        let (mut models, mut now, mut permits) = (KeyEngines::of_models(), START, 0);
        for (index, call) in self.0.iter().enumerate() {
            now = now.plus(call.wait);
            let draws = call.draws(&limits, &mut permits);
            let (told, expected) = (engine.decide(now, &draws), models.decide(now, &draws));
            for ((draw, told), expected) in draws.all().iter().zip(&told).zip(&expected) {
                if told != expected {
                    return Err(TestCaseError::fail(format!(
                        "call {index} at {now:?}: {} {:?} of {}\n  engine {told:?}\n  model  {expected:?}",
                        draw.limit(),
                        draw.act(),
                        draws.key(draw)
                    )));
                }
            }
        }
        Ok(())
    }
}

impl ModelCall {
    /// Its requests as draws. Who takes has a permit of its own; who gives back, one that was given out before.
    fn draws(&self, limits: &[Limit], permits: &mut u64) -> Draws {
        let mut draws = Draws::new();
        for request in &self.requests {
            draws.begin();
            for wish in &request.wishes {
                *permits += 1;
                let (act, permit) = match request.kind {
                    ModelRequestKind::Take => (Op::Take(Amount::exactly(wish.units)), *permits),
                    ModelRequestKind::Look => (Op::Look(Amount::exactly(wish.units)), *permits),
                    ModelRequestKind::Give => {
                        (Op::Give(wish.units), *permits - u64::from(wish.units).min(*permits))
                    }
                    ModelRequestKind::Clear => (Op::Clear, *permits),
                };
                let key = Key::new(["client", ["a", "b"][wish.key]]).expect("it is short");
                let scope = Scope(wish.limit as u64);
                draws.push(key.borrow(), scope, limits[wish.limit], act, PermitId(permit));
                draws.set_terms(DrawOptions { is_shadow: wish.is_shadow, ..DrawOptions::EXACT });
            }
        }
        draws
    }
}

fn limits() -> Vec<Limit> {
    let limit = |((_, law), quota): ((_, _), &str)| {
        Limit::new(law, quota.parse().expect("the quota can be read")).expect("the law takes the quota")
    };
    suite::laws().into_iter().zip(QUOTAS).map(limit).collect()
}
