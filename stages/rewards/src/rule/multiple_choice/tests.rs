use futures::executor::block_on;

use super::*;

fn score(response: &str, truth: &str, extra: Option<&str>) -> Result<Score, RewardError> {
    let sample =
        Sample { extra_info: extra.map(str::to_owned), ..Sample::of("mc", response, Some(truth)) };
    block_on(MultipleChoice::default().score(&sample, &Context::detached()))
}

fn check(response: &str, expected: Option<char>) {
    let score = score(response, "B", None).expect("scored");
    let found = score.labels.get("answer").and_then(|letter| letter.chars().next());
    assert_eq!(found, expected, "{response:?}");
    assert_eq!(score.value, f64::from(expected == Some('B')), "{response:?}");
}

#[test]
fn a_choice_is_read_where_it_is_marked() {
    check(r"so \boxed{B}", Some('B'));
    check(r"so \boxed{\text{B}}", Some('B'));
    check(r"so \boxed{(b)}", Some('B'));
    check(r"\boxed{A} no, \boxed{C}", Some('C'));
    check("Answer: (B) Paris. A is wrong.", Some('B'));
    check("the answer is b", Some('B'));
    check("Answer: **B**", Some('B'));
    check("**Answer:** B", Some('B'));
    check("**C. Paris**", Some('C'));
    check("I choose **B** over C", Some('B'));
}

#[test]
fn mentions_of_other_choices_do_not_override_the_answer() {
    for response in [
        "The answer is \\boxed{B}.\n\nOption A is wrong. Option D is wrong.",
        "Answer: B\n\nExplanation: Option A is incorrect. Option C is incorrect. Option D is a guess.",
        "The correct answer is B.\n\nOption A is wrong, as is option C.",
        "The correct option is B.\n\nOption A has no effect.",
        "**Answer: B**\n- Option A: France\n- Option B: Spain\n- Option C: Italy",
        "**Answer**: B\n\n**C** is a city.",
        "The answer is option B. Option C is a city.",
        "**B**\n\n**A** is wrong. **C** is wrong.",
        "**B**\n\n- Option A: France\n- Option C: Italy",
        "Option B. Option A is clearly wrong, and option C is not a city.",
        "B\n\nExplanation: A is wrong because of C.",
        "(B)\nA, C and D are wrong",
        "B. A, C and D are wrong.",
        "B, not C",
        "I choose option B, not option C.",
        "I choose B rather than C",
        "It is B. It is neither A nor C.",
        "It is B. C cannot be right.",
        "A: incorrect. B: correct. C: incorrect.",
        "A is wrong. B is not wrong.",
    ] {
        check(response, Some('B'));
    }
}

#[test]
fn rejected_choices_are_not_chosen() {
    for response in [
        "The answer is not B.",
        "Answer: not B",
        "It cannot be B.",
        "It isn't B",
        "The answer is not option B.",
        "The answer is not A or B.",
        "The answer cannot be C, B, or D.",
        "B can't be right.",
        "We can eliminate B.",
        r"\textbf{(B)} is wrong. \textbf{(C)} is wrong.",
    ] {
        check(response, None);
    }
}

#[test]
fn lists_of_rejected_choices_are_not_chosen() {
    for response in [
        "It must be B, since we can eliminate A, C, and D.",
        "Since B fits, we rule out A and C.",
        "Since B fits, we rule out A, C & D immediately.",
        "B fits, so we exclude options A, C and D.",
        "B fits. The answer cannot be A, C, or D.",
        "B fits. It is neither A, C nor D.",
        "B fits. It isn't A, C or D.",
        "We rule out A, C, and D, and B remains.",
        "We rule out A and C, so B.",
        "We eliminate A, and B is right.",
        "It is not A, B is right.",
        "It cannot be A, but B fits.",
    ] {
        check(response, Some('B'));
    }
}

#[test]
fn the_only_choice_counts_although_it_is_said_to_be_wrong() {
    for response in [
        "Option B is wrong.",
        "**B** is incorrect.",
        "**B** is false.",
        "(B) is false because the sun is a star.",
        "Option B is incorrect.",
        "Option B is incorrect. All others are correct.",
        "Option B is not a mammal.",
        "Only option B is not soluble in water, so it is the odd one out.",
        "**B** is not a noble gas, whereas A, C and D are.",
        "The statement that is not correct is B.",
        "The one that is not right is **B**.",
        "The option that is not correct: B",
        "The incorrect answer is B, since A, C and D are true.",
        "B is not right.",
        "B is wrong",
        r"\textbf{(B)} is wrong",
    ] {
        check(response, Some('B'));
    }
    check("Option A is wrong. The right one is B.", Some('B'));
    check("Option A is wrong. Option C is wrong. B", Some('B'));
    check("Option B is not a mammal, but option C is.", Some('C'));
    check("I choose option B, since option C is not a mammal.", Some('B'));
    check("The force over B", Some('B'));
}

#[test]
fn statements_that_a_choice_is_wrong_answer_a_negative_question() {
    let chosen = |question: &str, response: &str| {
        let messages = serde_json::json!([{"role": "user", "content": question}]).to_string();
        let sample = Sample { messages, ..Sample::of("mc", response, Some("B")) };
        let score = block_on(MultipleChoice::default().score(&sample, &Context::detached()));
        score.expect("scored").labels.get("answer").cloned()
    };
    for response in [
        "Option A is a mammal. Option C is a mammal. Option B is not a mammal.",
        "**A** is true. **C** is true. **B** is false.",
        "Option A is right, but option B is incorrect.",
        "The incorrect answer is B, since A, C and D are true.",
    ] {
        assert_eq!(chosen("Which is not true?", response).as_deref(), Some("B"), "{response:?}");
    }
    let response = "**B**\n\n**A** is wrong. **C** is wrong.";
    for question in ["Which is true?", "Which is true? Do not explain."] {
        assert_eq!(chosen(question, response).as_deref(), Some("B"), "{question:?}");
    }
    assert_eq!(chosen("Which is not true?", "It is not B"), None);
}

#[test]
fn a_conclusion_precedes_statements_before_it() {
    for response in [
        "If the answer is A, then x = 2, a contradiction. Therefore **B**.",
        "Some would say the answer is A. I pick **B**.",
        "The wrong answer is A; the right one is **B**.",
        "Suppose the answer is A. Then x = 2. Therefore option B.",
        "The answer is A? No.\n\n**B**",
        "The answer is A? No.\n\n(B)",
    ] {
        check(response, Some('B'));
    }
    for response in [
        "The answer is B. **A** is a city.",
        "The answer is B, not **A**.",
        "The answer is B. So neither **A** nor **C**.",
        "The answer is B.\n\n**A** and **C**",
        "If I am right, the answer is B. Option A is wrong.",
        "A is incorrect, so the answer is B.",
        "A is incorrect so the answer is B.",
    ] {
        check(response, Some('B'));
    }
    check("Check if the answer is B", Some('B'));
}

#[test]
fn the_text_of_a_choice_precedes_a_lone_label() {
    let vitamins = r#"{"choices": ["A", "C", "D", "K"]}"#;
    for (response, expected) in [("C", "B"), ("D", "C"), ("A", "A"), ("(C)", "B"), ("B", "B")] {
        assert_eq!(answer(response, "B", Some(vitamins)).as_deref(), Some(expected), "{response}");
    }
    let numbers = r#"{"choices": {"1": "2", "2": "3"}}"#;
    assert_eq!(answer("2", "2", Some(numbers)).as_deref(), Some("2"));
}

#[test]
fn the_text_of_a_choice_may_be_stated() {
    let extra = Some(r#"{"choices": ["Rome", "Paris", "12 cm", "A dog"]}"#);
    for (response, expected) in [
        ("The answer is Paris.", "B"),
        ("Answer: Paris", "B"),
        ("**Answer:** Paris", "B"),
        ("Final answer: **Paris**", "B"),
        (r"The answer is $\text{Paris}$.", "B"),
        ("The correct answer is Paris, because A is in Italy.", "B"),
        ("The answer is not Rome. The answer is Paris", "B"),
        ("Answer: Rome\nWait. Answer: Paris\nDone", "B"),
        ("Answer: (B) Paris", "B"),
        ("The answer is 12 cm", "C"),
        ("The answer is A dog", "D"),
        ("Answer: B\nThe answer is unclear.", "B"),
    ] {
        let score = score(response, expected, extra).expect("scored");
        assert_eq!(score.labels.get("answer").map(AsRef::as_ref), Some(expected), "{response:?}");
        assert_eq!(score.value, 1.0, "{response:?}");
    }
    let numbered = Some(r#"{"choices": {"1": "2", "2": "3"}}"#);
    let score_of = |response| score(response, "2", numbered).expect("scored").value;
    assert_eq!((score_of("The answer is 2."), score_of("The answer is 3.")), (1.0, 1.0));
    for response in ["The answer is Parisian", "The answer is in Paris", "An answer: Paris or Rome"]
    {
        let score = score(response, "B", extra).expect("scored");
        assert_eq!(score.labels.get("answer"), None, "{response:?}");
    }
}

#[test]
fn a_letter_may_be_wrapped_on_either_side() {
    for response in [
        r"\boxed{B}",
        r"\boxed{\text{(B)}}",
        r"\boxed{\textbf{(B)}}",
        r"$\boxed{\left(\mathrm{B}\right)}$",
        r"\boxed{\textbf{(B)}\ 5}",
        r"\boxed{\{B\}}, that is, $\boxed{\textrm{B.}}$",
        r"Answer: $\text{(B)}$",
        r"the answer is \(\mathbf{B}\).",
        "The correct option is `B`",
    ] {
        for truth in ["B", r"\text{(B)}", r"$\textbf{(B)}$", r"\mathrm{B}", "(b)", r"\boxed{B}"] {
            assert_eq!(
                score(response, truth, None).expect("scored").value,
                1.0,
                "{response:?} against {truth:?}"
            );
        }
        assert_eq!(
            score(response, r"\text{(C)}", None).expect("scored").value,
            0.0,
            "{response:?}"
        );
    }
}

#[test]
fn otherwise_the_last_single_letter_counts() {
    check("not C but B", Some('B'));
    check("B or D", Some('D'));
    check("B. A car would be late.", Some('B'));
    check("B, since I said so", Some('B'));
    check("(A)(B)", Some('B'));
    check("The answer is a matter of taste: D", Some('D'));
    check("BA", None);
    check("<think>B</think>C", Some('C'));
    check("", None);
}

#[test]
fn a_choice_may_be_given_as_its_full_text() {
    let value = |response, truth, extra| score(response, truth, Some(extra)).expect("scored").value;
    let list = r#"{"choices": ["London", "Paris", "Rome"]}"#;
    assert_eq!(value("paris.", "B", list), 1.0);
    assert_eq!(value(r"\boxed{Paris}", "Paris", list), 1.0);
    assert_eq!(value("Answer: B", "1", list), 1.0);
    assert_eq!(value("Answer: D", "1", list), 0.0);
    assert_eq!(value("Rome", "B", list), 0.0);
    assert_eq!(value("two", "B", r#"{"options": {"A": "one", "B": "two"}}"#), 1.0);
    let arc = r#"{"choices": {"text": ["one", "two"], "label": ["1", "2"]}}"#;
    assert_eq!(value("two", "B", arc), 1.0);
}

fn answer(response: &str, truth: &str, extra: Option<&str>) -> Option<String> {
    score(response, truth, extra).expect("scored").labels.get("answer").cloned()
}

#[test]
fn labels_may_be_numbers() {
    let object = r#"{"choices": {"1": "London", "2": "Paris", "3": "Rome", "4": "Bern"}}"#;
    let arc = r#"{"choices": {"text": ["London", "Paris", "Rome", "Bern"], "label": ["1", "2", "3", "4"]}}"#;
    for extra in [None, Some(object), Some(arc)] {
        for response in [
            "2",
            "(2)",
            "2.",
            "2)",
            "2. Paris",
            "Answer: 2",
            "Answer: (2)",
            "**Answer:** 2",
            "The answer is 2.",
            "the answer is **2**",
            "There are 4 of them.\n\n(2)",
            r"so \boxed{2}",
            r"\boxed{\text{(2)}}",
            r"$\boxed{2. Paris}$",
            "I choose option 2 because 3 and 4 are wrong.",
            "<think>1</think>2",
            "<answer>2</answer>",
        ] {
            assert_eq!(
                answer(response, "2", extra).as_deref(),
                Some("2"),
                "{response:?} {extra:?}"
            );
            assert_eq!(score(response, "2", extra).expect("scored").value, 1.0);
            assert_eq!(score(response, "3", extra).expect("scored").value, 0.0);
        }
        for response in [
            "It took 2 days.",
            "There are 2",
            "The answer is 2 days.",
            "the answer is 2.5",
            "The answer is 2/3",
            "Answer: 25%",
            "1. Read.\n2. Think.",
            "**2. Analysis**\n\nIt is so.",
            r"\boxed{2.5}",
            r"\boxed{22}",
            "",
        ] {
            assert_eq!(answer(response, "2", extra), None, "{response:?} {extra:?}");
        }
    }
    assert_eq!(answer("Answer: B", "2", Some(arc)).as_deref(), Some("2"));
    assert_eq!(answer("Paris", "2", Some(object)).as_deref(), Some("2"));
    let numbers = r#"{"choices": {"1": "2", "2": "3"}}"#;
    assert_eq!(answer(r"\boxed{2}", "2", Some(numbers)).as_deref(), Some("2"));
    let list = r#"{"choices": ["2", "3", "4"]}"#;
    assert_eq!(answer(r"\boxed{3}", "3", Some(list)).as_deref(), Some("B"));
}

#[test]
fn labels_may_be_roman_numerals() {
    let object = r#"{"choices": {"i": "London", "ii": "Paris", "iii": "Rome", "iv": "Bern"}}"#;
    for extra in [None, Some(object)] {
        for response in [
            "ii",
            "(ii)",
            "II.",
            "(ii) Paris",
            "Answer: (ii)",
            "the answer is ii.",
            r"\boxed{\text{(ii)}}",
            "**(ii)**",
            "not iii but ii, I think",
        ] {
            assert_eq!(answer(response, "ii", extra).as_deref(), Some("ii"), "{response:?}");
            assert_eq!(score(response, "iii", extra).expect("scored").value, 0.0);
        }
        assert_eq!(answer("(i)", "ii", extra).as_deref(), Some("i"));
        assert_eq!(answer("(iv)", "iv", extra).as_deref(), Some("iv"));
        assert_eq!(answer("I think so, x = 5", "ii", extra), None);
    }
}

#[test]
fn labels_may_be_lower_case_and_reach_j() {
    let object = r#"{"choices": {"a": "London", "b": "Paris"}}"#;
    for response in ["b", "(b)", "b.", "b) Paris", "Answer: b", r"\boxed{b}", "B", "So:\n(b)"] {
        assert_eq!(answer(response, "b", Some(object)).as_deref(), Some("B"), "{response:?}");
        assert_eq!(answer(response, "B", None).as_deref(), Some("B"), "{response:?}");
    }
    assert_eq!(answer("It is a car.", "b", Some(object)), None);
    for label in ["G", "H", "I", "J"] {
        for response in
            [label.to_owned(), format!("Answer: {label}"), format!("\\boxed{{{label}}}")]
        {
            assert_eq!(answer(&response, label, None).as_deref(), Some(label), "{response:?}");
        }
    }
    assert_eq!(answer("B, I think", "B", None).as_deref(), Some("B"));
    assert_eq!(answer("B. So do I.", "B", None).as_deref(), Some("B"));
    assert_eq!(answer("The answer is I think B", "B", None).as_deref(), Some("B"));
    let ten: Vec<String> = (0..10).map(|at| format!("text {at}")).collect();
    let ten = serde_json::json!({ "choices": ten }).to_string();
    assert_eq!(answer("Answer: J", "9", Some(&ten)).as_deref(), Some("J"));
    assert_eq!(score("Answer: J", "9", Some(&ten)).expect("scored").value, 1.0);
}

#[test]
fn an_invalid_choice_is_an_error() {
    let error = |truth, extra| score("B", truth, extra).expect_err("no choice").reason;
    assert_eq!(
        error("nine", None),
        "field `ground_truth`: expected a letter from A to J, a number from 0 to 10 or a numeral from i to x, found `nine`"
    );
    let list = Some(r#"{"choices": ["x", "y"]}"#);
    assert!(
        error("C", list)
            .ends_with("the label of a choice, its text or its number from 0, found `C`")
    );
    assert!(error("A", Some(r#"{"choices": 3}"#)).contains("`extra_info.choices`"));
}
