//! The parsers return a value that round-trips through its text form, or an error, for any input.

use ratekeeper_core::{Algorithm, Key, Limit, Quota, Span, Zone};

#[test]
fn quotas() {
    bolero::check!().with_type::<String>().for_each(|text: &String| {
        if let Ok(quota) = text.parse::<Quota>() {
            assert_eq!(quota.to_string().parse(), Ok(quota));
            let _ = Limit::new(Algorithm::TokenBucket, quota);
        }
    });
}

#[test]
fn almost_valid_quotas() {
    let pieces = [
        "1",
        "100",
        "4294967295",
        "99999999999999999999",
        "/",
        " per ",
        "s",
        "min",
        "h",
        "month",
        "y",
        "us",
        " burst ",
        "burst",
        "0",
        "_",
        " ",
        "é",
        "-",
        ".",
    ];
    bolero::check!().with_type::<Vec<u8>>().for_each(|choices: &Vec<u8>| {
        let text: String = choices.iter().map(|choice| pieces[usize::from(*choice) % pieces.len()]).collect();
        if let Ok(quota) = text.parse::<Quota>() {
            assert_eq!(quota.to_string().parse(), Ok(quota), "{text:?}");
            let _ = Limit::new(Algorithm::SlidingWindowCounter, quota);
        }
    });
}

#[test]
fn quotas_from_any_numbers() {
    bolero::check!().with_type::<(u32, u64, Option<u32>)>().for_each(|(amount, per, burst)| {
        let quota = Quota::new(*amount, Span::micros(*per)).and_then(|quota| match burst {
            Some(burst) => quota.with_burst(*burst),
            None => Ok(quota),
        });
        if let Ok(quota) = quota {
            assert_eq!(quota.to_string().parse(), Ok(quota));
        }
    });
}

#[test]
fn keys() {
    bolero::check!().with_type::<String>().for_each(|text: &String| {
        if let Ok(key) = text.parse::<Key>() {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
    });
}

#[test]
fn keys_from_any_parts() {
    bolero::check!().with_type::<Vec<String>>().for_each(|parts: &Vec<String>| {
        if let Ok(key) = Key::new(parts.iter().map(String::as_str)) {
            assert!(key.borrow().parts().eq(parts.iter().map(String::as_str)));
            assert_eq!(key.to_string().parse(), Ok(key));
        }
    });
}

#[test]
fn zones() {
    bolero::check!().with_type::<String>().for_each(|text: &String| {
        if let Ok(zone) = text.parse::<Zone>() {
            assert_eq!(zone.to_string().parse(), Ok(zone));
        }
    });
}
