use super::*;

/// The structure of Qwen2.5's template, without its tools.
const CHATML: &str = "{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are terse.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) or (message.role == \"assistant\" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content.strip() + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
";

fn messages(of: &[(&str, &str)]) -> Vec<Message> {
    of.iter()
        .map(|&(role, content)| Message { role: role.to_owned(), content: content.to_owned() })
        .collect()
}

fn check(template: &str, chat: &[(&str, &str)], expected: &str) {
    let template = ChatTemplate::new(template).unwrap();
    assert_eq!(template.render(&messages(chat), true).unwrap(), expected);
}

fn refusal(template: &str) -> String {
    let rendered = ChatTemplate::new(template)
        .and_then(|template| template.render(&messages(&[("user", "a")]), true));
    rendered.unwrap_err().to_string()
}

#[test]
fn chatml_matches_transformers() {
    check(
        CHATML,
        &[("user", " 1 < 2 & 'so' ")],
        "<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\n1 < 2 & 'so'<|im_end|>\n<|im_start|>assistant\n",
    );
    check(
        CHATML,
        &[("system", "S"), ("user", "U"), ("assistant", "A")],
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>assistant\n",
    );
}

#[test]
fn the_default_date_of_a_template_is_used() {
    check(
        "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}26 Jul 2024{% endif %}",
        &[],
        "26 Jul 2024",
    );
    check("{% if tools is not none or date is defined %}tools{% endif %}", &[], "");
}

#[test]
fn the_generation_prompt_is_a_choice() {
    let template =
        ChatTemplate::new("{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}")
            .unwrap();
    assert_eq!(template.render(&messages(&[("user", "a")]), false).unwrap(), "a");
}

#[test]
fn json_is_formatted_as_in_python() {
    let json = "{{ messages | tojson }}";
    check(json, &[("user", "<é & \"b\">")], r#"[{"role": "user", "content": "<é & \"b\">"}]"#);
    check(
        "{{ messages | tojson(indent=2) }}",
        &[("u", "a")],
        "[\n  {\n    \"role\": \"u\",\n    \"content\": \"a\"\n  }\n]",
    );
    check("{{ [] | tojson }}{{ {} | tojson(indent=4) }}", &[], "[]{}");
}

#[test]
fn the_options_of_json_are_those_of_python() {
    let (separated, user) = ("{{ messages | tojson(separators=(',', ':')) }}", [("user", "é😀")]);
    check(separated, &user, r#"[{"role":"user","content":"é😀"}]"#);
    check(
        "{{ messages[0] | tojson(sort_keys=true) }}",
        &user,
        r#"{"content": "é😀", "role": "user"}"#,
    );
    let ascii = "{{ messages[0].content | tojson(ensure_ascii=true) }}";
    check(ascii, &user, r#""\u00e9\ud83d\ude00""#);
    check(&ascii.replace("true", "false"), &user, r#""é😀""#);
    check("{{ [1, 2] | tojson(indent=1, separators=(';', '')) }}", &[], "[\n 1;\n 2\n]");
    assert!(refusal("{{ messages | tojson(escape=true) }}").contains("escape"));
    assert!(refusal("{{ messages | tojson(separators=(',',)) }}").contains("two texts"));
}

#[test]
fn the_tags_around_texts_of_the_model_are_accepted() {
    let template = "{% for m in messages %}\n{%- generation %}{% set end = '!' %}{{ m.content + end }}{%- endgeneration -%}\n{% endfor %}\
                    {{ end is defined }}{{ '{% generation' }}";
    check(template, &[("user", "a"), ("assistant", "b")], "a!b!False{% generation");
    assert!(refusal("{% generations %}{% endgenerations %}").contains("generations"));
}

#[test]
fn blocks_are_trimmed() {
    check(
        "  {% for m in messages %}\n{{ m.content }}\n  {% endfor %}\n",
        &[("user", "a"), ("user", "b")],
        "a\nb\n",
    );
}

#[test]
fn python_methods_and_loop_controls_work() {
    let template = "{% for m in messages %}{% if m.role.startswith('s') %}{% continue %}{% endif %}\
                    {{ m.content.split('</think>')[-1].lstrip('\\n') }}{{ m.get('none', '!') }}{% endfor %}";
    check(template, &[("system", "x"), ("user", "a</think>\nb")], "b!");
}

#[test]
fn errors_raised_by_a_template_are_reported() {
    let error = refusal("{{ raise_exception('roles must alternate') }}");
    assert_eq!(error, "chat template of a string: roles must alternate (line 1)");
    assert!(refusal("{{ strftime_now('%d %b %Y') }}").contains("strftime_now is unknown"));
    assert!(refusal("{% if %}").starts_with("chat template of a string: "));
}

#[test]
fn a_template_that_does_not_end_fails() {
    let long = "{% for a in range(90000) %}".repeat(3) + "x" + &"{% endfor %}".repeat(3);
    let error = refusal(&format!("{{% if messages %}}{long}{{% endif %}}"));
    assert!(error.contains("out of fuel"), "{error}");
}

#[test]
fn a_template_that_writes_too_much_fails() {
    let template = "{% for a in range(70000) %}{{ messages[0].content * 1000 }}{% endfor %}";
    let error = refusal(template);
    let expected =
        "chat template of a string: expected a text of at most 67108865 bytes, found more";
    assert_eq!(error, expected);
    let long = "a".repeat((64 << 20) + 1);
    check("{{ messages[0].content }}", &[("user", &long)], &long);
}

#[test]
fn a_folder_s_template_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let render = || {
        let template = ChatTemplate::from_folder(folder.path()).unwrap();
        template.render(&messages(&[("user", "a"), ("user", "b")]), true).unwrap()
    };
    let config = |json: serde_json::Value| {
        std::fs::write(folder.path().join("tokenizer_config.json"), json.to_string()).unwrap()
    };
    assert_eq!(render(), "ab");
    config(serde_json::json!({ "eos_token": "E" }));
    assert_eq!(render(), "ab");
    config(
        serde_json::json!({ "bos_token": { "content": "B" }, "eos_token": "E", "chat_template": "{{ bos_token }}1{{ eos_token }}" }),
    );
    assert_eq!(render(), "B1E");
    let list = serde_json::json!([{ "name": "tool_use", "template": "2" }, { "name": "default", "template": "3" }]);
    config(serde_json::json!({ "chat_template": list }));
    assert_eq!(render(), "3");
    std::fs::write(folder.path().join("chat_template.jinja"), "4").unwrap();
    assert_eq!(render(), "4");
    std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    config(serde_json::json!({ "chat_template": [] }));
    let error = ChatTemplate::from_folder(folder.path()).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "key `chat_template`: expected a template, or a list with one named `default`, found []"
        ),
        "{error}"
    );
}
