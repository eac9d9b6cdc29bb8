//! Random requests over several limits, biased towards edge cases.

use crate::algorithms::all_algorithms;
use crate::engine::Engine;
use crate::key_engines::KeyEngines;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::test_runner::TestCaseError;
use ratekeeper_core::{Amount, DrawOptions, Draws, Key, Limit, Micros, Op, PermitId, Scope, Span};

/// The time of the first call: in 2023, at an odd microsecond.
const FIRST_CALL: Micros = Micros::new(1_700_000_000_123_457);
/// One quota for each of [`all_algorithms`].
const QUOTAS: [&str; 9] =
    ["10/s burst 4", "20/s burst 3", "11/s burst 5", "9 per 2s", "12/day", "5/s", "6/s", "7/s", "8/s"];

/// Requests, as a sequence of calls.
#[derive(Clone, Debug)]
pub(crate) struct Requests(Vec<ModelCall>);

/// Requests decided in one call, and the time since the call before.
#[derive(Clone, Debug)]
struct ModelCall {
    delay: Span,
    requests: Vec<ModelRequest>,
}

/// One request.
#[derive(Clone, Debug)]
struct ModelRequest {
    kind: ModelRequestKind,
    draws: Vec<ModelDraw>,
}

/// The operation of a request, the same under all its limits.
#[derive(Clone, Copy, Debug)]
enum ModelRequestKind {
    Take,
    Peek,
    Refund,
    Reset,
}

/// One draw of a request: the indexes of its key and limit, and its units.
#[derive(Clone, Debug)]
struct ModelDraw {
    key: usize,
    limit: usize,
    units: u32,
    is_shadow: bool,
}

/// Requests over two keys and all algorithms: several limits each, possibly the same one twice, some of them shadows.
/// Some requests of a call are equal.
pub(crate) fn requests() -> impl Strategy<Value = Requests> {
    let draw = (0..2_usize, 0..QUOTAS.len(), 0..4_u32, proptest::bool::weighted(0.2));
    let draw = draw.prop_map(|(key, limit, units, is_shadow)| ModelDraw { key, limit, units, is_shadow });
    let kind = prop_oneof![
        10 => Just(ModelRequestKind::Take),
        1 => Just(ModelRequestKind::Peek),
        1 => Just(ModelRequestKind::Refund),
        1 => Just(ModelRequestKind::Reset),
    ];
    let request = (kind, vec(draw, 1..5)).prop_map(|(kind, draws)| ModelRequest { kind, draws });
    let alike = (request, 1..4_usize).prop_map(|(request, times)| vec![request; times]);
    let wait = prop_oneof![9 => 0..200_000_u64, 1 => 0..2 * Span::DAY.get()].prop_map(Span::micros);
    let call = (wait, vec(alike, 1..4)).prop_map(|(wait, requests)| ModelCall {
        delay: wait,
        requests: requests.into_iter().flatten().collect(),
    });
    vec(call, 1..20).prop_map(Requests)
}

impl Requests {
    /// Runs the requests through an engine and the models, which must reply the same.
    ///
    /// # Errors
    /// If a reply differs; the error names the call and the draw.
    pub(crate) fn check(&self, engine: &mut impl Engine) -> Result<(), TestCaseError> {
        let limits = limits();
        let (mut models, mut now, mut permits) = (KeyEngines::of_models(), FIRST_CALL, 0);
        for (index, call) in self.0.iter().enumerate() {
            now = now.plus(call.delay);
            let draws = call.draws(&limits, &mut permits);
            let (replies, expected) = (engine.decide(now, &draws), models.decide(now, &draws));
            for ((draw, reply), expected) in draws.all().iter().zip(&replies).zip(&expected) {
                if reply != expected {
                    return Err(TestCaseError::fail(format!(
                        "call {index} at {now:?}: {} {:?} of {}\n  engine {reply:?}\n  model  {expected:?}",
                        draw.limit(),
                        draw.op(),
                        draws.key(draw)
                    )));
                }
            }
        }
        Ok(())
    }
}

impl ModelCall {
    /// The draws of the requests. A take has its own permit; a refund names one that was used before.
    fn draws(&self, limits: &[Limit], permits: &mut u64) -> Draws {
        let mut draws = Draws::new();
        for request in &self.requests {
            draws.begin_group();
            for draw in &request.draws {
                *permits += 1;
                let (op, permit) = match request.kind {
                    ModelRequestKind::Take => (Op::Take(Amount::exactly(draw.units)), *permits),
                    ModelRequestKind::Peek => (Op::Peek(Amount::exactly(draw.units)), *permits),
                    ModelRequestKind::Refund => {
                        (Op::Refund(draw.units), *permits - u64::from(draw.units).min(*permits))
                    }
                    ModelRequestKind::Reset => (Op::Reset, *permits),
                };
                let key = Key::new(["client", ["a", "b"][draw.key]]).expect("the key is short");
                let scope = Scope(draw.limit as u64);
                draws.push(key.borrow(), scope, limits[draw.limit], op, PermitId(permit));
                draws.set_options(DrawOptions { is_shadow: draw.is_shadow, ..DrawOptions::EXACT });
            }
        }
        draws
    }
}

fn limits() -> Vec<Limit> {
    let limit = |((_, algorithm), quota): ((_, _), &str)| {
        Limit::new(algorithm, quota.parse().expect("the quota is valid"))
            .expect("the algorithm accepts the quota")
    };
    all_algorithms().into_iter().zip(QUOTAS).map(limit).collect()
}
