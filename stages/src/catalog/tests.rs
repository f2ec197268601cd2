use serde_json::{Value, json};

use crate::documented::Field;

use super::*;

crate::documented! {
    /// A curve.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Slope {
        /// The rise per unit.
        slope: f64,
    }
}

impl Default for Slope {
    fn default() -> Self {
        Self { slope: 2.0 }
    }
}

fn catalog() -> Catalog<Slope> {
    let about = About { aliases: &[("line", "peer")], summary: "a line", source: "Euclid" };
    Catalog::new("curve")
        .described("linear", about, |slope: Slope| {
            let wrong = CatalogError::out_of_range("slope", "a number above 0", slope.slope);
            if slope.slope > 0.0 { Ok(slope) } else { Err(wrong) }
        })
        .with("flat", |_: NoOptions| Ok(Slope { slope: 0.0 }))
}

#[test]
fn names_and_aliases_create_the_same() {
    let catalog = catalog();
    assert_eq!(catalog.make(&Choice::of("linear")), Ok(Slope { slope: 2.0 }));
    let steep = Choice::of("line").with("slope", 3.0);
    assert_eq!(catalog.make(&steep), Ok(Slope { slope: 3.0 }));
    assert_eq!(catalog.options("line"), Some(["slope"].as_slice()));
    let listed: Vec<_> = catalog
        .list()
        .map(|ListedEntry { name, docs, .. }| {
            (name, docs.defaults.len(), docs.fields.first().map(Field::text))
        })
        .collect();
    let text = "The rise per unit.".to_owned();
    assert_eq!(listed, [("flat", 0, None), ("linear", 1, Some(text))]);
}

#[test]
fn an_entry_that_cannot_be_created_is_named() {
    let error = |choice: Choice| catalog().make(&choice).expect_err("refused").to_string();
    assert_eq!(error(Choice::of("lin")), "there is no curve `lin`; there are flat, linear");
    let low = Choice::of("linear").with("slope", -1.0);
    assert_eq!(error(low.clone()), "`slope`: expected a number above 0, found -1");
    let text = Choice::of("linear").with("slope", "steep");
    assert_eq!(catalog().type_errors(&low), []);
    assert_eq!(
        catalog().type_errors(&text),
        catalog().make(&text).err().into_iter().collect::<Vec<_>>()
    );
    assert_eq!(error(text), "`slope`: expected a number, found \"steep\"");
    assert!(error(Choice::of("flat").with("slope", 1)).contains("unknown field `slope`"));
}

#[test]
fn each_option_of_a_wrong_type_has_an_error() {
    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only deserialized")]
    struct Line {
        name: String,
        points: Vec<f64>,
        #[serde(default)]
        slope: f64,
    }
    let catalog = Catalog::new("curve").with("line", |_: Line| Ok(()));
    let errors = |choice: Choice| -> Vec<String> {
        catalog.type_errors(&choice).iter().map(ToString::to_string).collect()
    };
    let line = Choice::of("line");
    assert_eq!(errors(line.clone()), ["missing field `name`"]);
    assert!(errors(line.clone().with("nam", "a")).is_empty());
    let line = line.with("name", 1).with("points", json!([0.0, "x"]));
    let wrong = [
        "`name`: expected a string, found 1",
        "`points[1]`: expected a number, found \"x\"",
        "`slope`: expected a number, found true",
    ];
    assert_eq!(errors(line.clone().with("slpe", 1).with("slope", true)), wrong);
    assert_eq!(errors(line.with("slope", 1.0)), wrong[..2]);
}

#[test]
fn each_wrong_value_of_a_nested_table_has_an_error() {
    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only deserialized")]
    struct Curve {
        axis: Axis,
        degree: u32,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only deserialized")]
    struct Axis {
        low: f64,
        high: f64,
        #[serde(default)]
        label: String,
    }
    let errors = |options: Value| -> Vec<String> {
        let Value::Object(options) = options else { panic!("a table") };
        type_errors::<Curve>(options).iter().map(ToString::to_string).collect()
    };
    let wrong = json!({"axis": {"low": "a", "high": "b", "labels": 1, "label": 2}, "degree": "c"});
    let expected = [
        "`axis.low`: expected a number, found \"a\"",
        "`axis.high`: expected a number, found \"b\"",
        "`axis.labels`: unknown field `labels`, expected one of `low`, `high`, `label`",
        "`axis.label`: expected a string, found 2",
        "`degree`: expected an integer, found \"c\"",
    ];
    assert_eq!(errors(wrong), expected);
    let missing = json!({"axis": {"low": 0.0, "label": 2}, "degree": "c"});
    let expected =
        ["`axis.label`: expected a string, found 2", "`degree`: expected an integer, found \"c\""];
    assert_eq!(errors(missing), expected);
    let missing = json!({"axis": {"low": 0.0}, "degree": "c"});
    let expected = ["`axis`: missing field `high`", "`degree`: expected an integer, found \"c\""];
    assert_eq!(errors(missing), expected);
}
