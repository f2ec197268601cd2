use super::super::{AnswerIn, Verifier};
use super::{check, is_correct};

#[test]
fn marked_answers_count_and_the_last_marker_wins() {
    check(
        &[
            ("9", "3+4=7,7*7=9,A:9"),
            ("1234", "so #### 1,234"),
            ("\\frac{1}{2}", "\\boxed{\\frac{1}{2}}"),
            ("8", "\\boxed{7} no, \\boxed{8}"),
            ("7", "x^{2}, so \\boxed 7"),
            ("42", "<answer> 42. </answer>"),
            ("18.0", "Answer: $18$\nThanks"),
            ("4", "A:3 then #### 4"),
            ("18", "**Answer:** 18 dollars"),
            ("x = 5", "Answer: 5"),
            ("5", "the answer is 5"),
            ("5", "so there are 3 apples and 5."),
            ("Paris", "Answer: Paris"),
        ],
        true,
    );
    assert!(!is_correct("#### 4 then A:3", "4"));
    let marked = Verifier { last_number: false, ..Verifier::default() };
    assert!(!marked.is_correct("so there are 3 apples and 5.", "5"));
    assert!(marked.is_correct("A:5", "5"));
}

#[test]
fn options_are_an_object() {
    let with = |options: &str| Verifier::default().with(&serde_json::from_str(options).unwrap());
    assert_eq!(with(r#"{"precision": 2}"#).unwrap().precision, 2);
    for options in ["[2]", "[]", "2", "null", "\"precision\""] {
        let error = with(options).unwrap_err().to_string();
        assert!(error.contains("an object of options") && error.ends_with(options), "{error}");
    }
}

#[test]
fn numbers() {
    check(
        &[
            ("1000", "1,000.0"),
            ("$12{,}345$", "12345"),
            ("$0.5$", "$\\frac12$"),
            ("$\\frac{7}{2}$", "$3\\frac{1}{2}$"),
            ("$3.5$", "3 1/2"),
            ("$25\\%$", "0.25"),
            ("$25\\%$", "$\\frac14$"),
            ("$2.5 \\times 10^{3}$", "2500"),
            ("$-\\frac{10}{4}$", "$-2.5$"),
            ("$0.333333$", "$1/3$"),
            ("$10^{12}$", "1000000000000"),
            ("$\\frac{\\frac{1}{2}}{3}$", "$\\frac{1}{6}$"),
            ("$5!$", "120"),
            ("$\\binom{5}{2}$", "10"),
            ("$1011_2$", "$1011_{2}$"),
            ("$11$", "$1011_2$"),
            ("$|-3|$", "3"),
            ("$(-1)^{10001}$", "-1"),
            ("$(-1)^{-10000}$", "1"),
            ("$\\lfloor 2.7 \\rfloor$", "2"),
            ("$45^\\circ$", "45 degrees"),
            ("$45^\\circle$", "45"),
            ("$12\\text{ cm}^2$", "12"),
            ("$\\$4.50$", "4.5"),
            ("$2^{10}$", "1024"),
            ("12345", r"\boxed{12\,345}"),
            ("1234567", r"$1{\,}234{\,}567$"),
            ("1234567", "1\u{202f}234\u{202f}567"),
            ("12345", "$12~345$"),
            (r"$0.\overline{3}$", r"$\frac13$"),
            (r"$\frac{1}{6}$", r"$0.1\overline{6}$"),
            (r"$\frac17$", r"$0.\overline{142857}$"),
            (r"$\frac{4}{3}$", r"$1.\bar{3}$"),
            (r"$\frac13$", r"$0.\dot3$"),
            (r"$\frac{179}{33}$", r"$5.\dot{4}\dot{2}$"),
            (r"$\frac17$", r"$0.\dot14285\dot7$"),
            (r"$\frac13$", "$0.333...$"),
            (r"$\frac13$", "the answer is 0.333..."),
            (r"$\frac16$", r"$0.1666\ldots$"),
            (r"$\frac{2}{11}$", "$0.1818…$"),
            ("4", "$3.999...$"),
            (r"$\sqrt{2}$", "$1.41421356...$"),
            ("0.6789", r"$0.678\,9$"),
            ("12345.6789", r"$12\,345.678\,9$"),
            ("1000000", "$1.000.000$"),
            ("1234567.89", "$1.234.567,89$"),
            ("0.5", "$½$"),
            ("2.5", "$2½$"),
            ("12", "$１２$"),
            ("4", r"$4^{\text{th}}$"),
            ("21", "$21^{st}$"),
            ("1000", r"$\text{1,000}$"),
            ("12:30", "$12{:}30$"),
            ("3.14", r"$\approx 3.14$"),
            ("5", "$= 5$"),
        ],
        true,
    );
}

#[test]
fn expressions() {
    check(
        &[
            ("$(x+1)^2$", "$x^2+2x+1$"),
            ("$\\frac{x^2-1}{x-1}$", "$x+1$"),
            ("$\\sqrt{8}$", "$2\\sqrt{2}$"),
            ("$\\frac{1}{\\sqrt{2}}$", "$\\frac{\\sqrt2}{2}$"),
            ("$\\frac{1}{1+\\sqrt{3}}$", "$\\frac{\\sqrt{3}-1}{2}$"),
            ("$\\sqrt{3+2\\sqrt{2}}$", "$1+\\sqrt{2}$"),
            ("$\\sin\\frac{\\pi}{6}$", "$\\frac12$"),
            ("$\\cos(2x)$", "$1-2\\sin^2 x$"),
            ("$\\ln 8$", "$3\\ln 2$"),
            ("$\\log_2 8$", "3"),
            ("$\\log 100$", "2"),
            ("$e^{2x}$", "$(e^x)^2$"),
            ("$2\\pi r$", "$r \\cdot 2 \\cdot \\pi$"),
            ("$\\sqrt[3]{27}$", "3"),
            ("$n!$", "$n \\cdot (n-1)!$"),
            ("$(1+i)^2$", "$2i$"),
            ("$\\frac{a}{b}$", "a/b = \\boxed{a b^{-1}}"),
            ("$f(x+1)$", "$f(1+x)$"),
            ("$\\text{even}$", "$Even$"),
            ("$\\pi$", "pi is \\boxed{π}"),
            ("$\\tan^{-1}(1)$", "$\\frac{\\pi}{4}$"),
            (r"$\frac12$", r"$\cos 60^\circ$"),
            (r"$\frac{\sqrt3}{2}$", r"$\sin(60^{\circ})$"),
            (r"$2\sin 10°$", r"$2\cos 80°$"),
            (r"$1$", r"$\sin^2 20^\circ + \cos^2 20^\circ$"),
            (r"$\sqrt3$", r"$\cot\frac{60^\circ}{2}$"),
            (r"$60^\circ$", "60"),
        ],
        true,
    );
}

#[test]
fn collections() {
    check(
        &[
            ("$(1, 2)$", "$\\left(1,2\\right)$"),
            ("$1, 2$", "$2,1$"),
            ("$\\{1,2,3\\}$", "$\\{3,1,2\\}$"),
            ("$\\{1,2\\}$", "$1$ and $2$"),
            ("$\\pm 3$", "$3, -3$"),
            ("$x = \\pm 3$", "$x = 3$ or $x = -3$"),
            ("$[0, 1)$", "$x \\in [0,1)$"),
            ("$[1,3] \\cup [2,5]$", "$[1,5]$"),
            (
                "$\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}$",
                "$\\begin{bmatrix} 1 \\\\ 2.0 \\end{bmatrix}$",
            ),
            ("$\\begin{vmatrix} 1 & 2 \\\\ 3 & 4 \\end{vmatrix}$", "-2"),
            ("$(x,y) = (1,2)$", "$(1,2)$"),
            ("$x=1, y=2$", "$y = 2, x = 1$"),
            ("$\\mathbb{R}$", "$(-\\infty, \\infty)$"),
            ("$\\emptyset$", "$\\{\\}$"),
        ],
        true,
    );
}

#[test]
fn relations() {
    check(
        &[
            ("$x > 2$", "$2 < x$"),
            ("$2x + 4y = 6$", "$y = \\frac{3 - x}{2}$"),
            ("$x > 2$", "$x \\in (2, \\infty)$"),
            ("$x^2 < 4$", "$(-2, 2)$"),
            ("$x \\neq 3$", "$(-\\infty,3) \\cup (3,\\infty)$"),
            ("$1 \\le x < 2$", "$2 > x \\ge 1$"),
            ("$x = 7$", "7"),
            ("$7$", "$x = 3 + 4 = 7$"),
            ("$\\sqrt{2} \\approx 1.414$", "$\\sqrt{2}$"),
            ("$x < 1$ or $x > 3$", "$(-\\infty, 1) \\cup (3, \\infty)$"),
            ("$y = 2x + 1$", "$2x - y + 1 = 0$"),
            ("$x > 3$", "$> 3$"),
            (r"$x \geq 5$", r"$\geq 5$"),
            (r"$\geq 5$", r"$[5, \infty)$"),
            ("≤ 5", r"$x \le 5$"),
            (r"$\angle ABC$", r"$\angle ABC$"),
        ],
        true,
    );
    let either = Verifier { relation_for_set: true, ..Verifier::default() };
    assert!(either.is_correct("$x > 2$", "$(2, \\infty)$"));
    assert!(!is_correct("$x > 2$", "$(2, \\infty)$"));
}

#[test]
fn limits_sums_and_integrals() {
    check(
        &[
            (r"$\int_0^1 f(x)\,dx$", r"$\int_{0}^{1} f(x) dx$"),
            (r"$\int_0^1 f(x)\,dx$", r"$\int_0^1 f(t)\,\mathrm{d}t$"),
            (r"$\int_0^1 x\,dx + 1$", r"$1 + \int_0^1 x\,dx$"),
            (r"$\int_0^1 x\,dx + y - 1$", r"$y - 1 + \int_0^1 x\,dx$"),
            (r"$\int \sin x\,dx$", r"$\int \sin(x)\,dx$"),
            (r"$\int_0^1\int_0^x xy\,dy\,dx$", r"$\int_0^1\int_0^x yx\,dy\,dx$"),
            (r"$\sum_{k=1}^n k^2$", r"$\sum_{i=1}^{n} i^2$"),
            (r"$\sum_{k=1}^n a_k$", r"$\sum_{k=1}^{n} a_k$"),
            (r"$\sum_{k=1}^\infty \frac{1}{k^2}$", r"$\sum_{k=1}^{\infty} k^{-2}$"),
            (r"$\sum_{i=1}^n\sum_{j=1}^m ij^2$", r"$\sum_{j=1}^n\sum_{i=1}^m ji^2$"),
            (r"$\prod_{k=1}^n (k+1)$", r"$\prod_{j=1}^n (1+j)$"),
            (r"$\lim_{x\to0} f(x)$", r"$\lim_{t \rightarrow 0} f(t)$"),
            (r"$\lim_{n\to\infty} a_n = 3$", "3"),
            (r"$2\oint_C f$", r"$2 \cdot \oint_{C} f$"),
            (r"$2\iint_D f\,dA$", r"$2 \cdot \iint_{D} f\,dA$"),
            (r"$2\tilde{x}$", r"$\tilde{x} \cdot 2$"),
            (r"$2\lVert x\rVert$", r"$2\cdot\|x\|$"),
            (r"$2\vert x\vert$", "$|x| + |x|$"),
            (r"$2\frac32$", "3"),
            (r"$\int y + \frac32$", r"$\frac32 + \int y$"),
        ],
        true,
    );
}

#[test]
fn options() {
    let rough = Verifier { precision: 2, ..Verifier::default() };
    assert!(rough.is_correct("0.001", "0"));
    assert!(!rough.is_correct("0.1", "0"));
    assert!(rough.is_correct("$(0.67, 1)$", "$(\\frac{2}{3}, 1)$"));
    assert!(!is_correct("$(0.67, 1)$", "$(\\frac{2}{3}, 1)$"));
    let lax = Verifier { strict: false, ..Verifier::default() };
    assert!(lax.is_correct("$y^2 + 1$", "$x^2 + 1$"));
    assert!(lax.is_correct("$\\{1, 2\\}$", "$(1, 2)$"));
}

#[test]
fn choices() {
    check(
        &[
            (r"\text{(A)}", r"\boxed{A}"),
            (r"\text{(A)}", r"\boxed{\text{(A)}}"),
            (r"\text{(C)}", r"so $\boxed{\textbf{(C)}}$"),
            (r"$\text{(E)}$", "Answer: E"),
            (r"A", r"\boxed{\mathrm{A}}"),
            (r"\mathrm{(B)}", r"\boxed{\text{B.}}"),
            (r"\textbf{(D)}", r"$\boxed{(D)}$"),
            (r"B", r"\boxed{\textbf{(B)}\ 12}"),
            (r"$\text{A, C}$", r"\boxed{A, C}"),
            (r"$\text{(A), (C)}$", r"\boxed{A, C}"),
            (r"12", r"\boxed{\textbf{(B) } 12}"),
            (r"\textbf{(B)}\ 12", r"\boxed{B}"),
        ],
        true,
    );
}

#[test]
fn semicolons_in_brackets_separate_as_commas_do() {
    check(
        &[
            ("$(1, 2, 3)$", "$(1; 2; 3)$"),
            ("$(1; 2; 3; 4)$", r"\boxed{(1, 2, 3, 4)}"),
            ("$(0.5; 1.5)$", "$(0.5, 1.5)$"),
            (r"$\{1, 2, 3\}$", r"$\{3; 1; 2\}$"),
            ("$[1, 2)$", "$[1; 2)$"),
            (r"$\langle 1; 2; 3\rangle$", "$(1, 2, 3)$"),
            ("$(1, 2), (3, 4)$", "$(1; 2); (3; 4)$"),
            ("$f(x, y, z)$", "$f(x; y; z)$"),
        ],
        true,
    );
}

#[test]
fn several_boxes_with_left_hand_sides() {
    check(
        &[
            ("$y_1 = 2, y_2 = 3$", "$y_1 = \\boxed{2}$\n\n$y_2 = \\boxed{3}$"),
            ("$y_1 = 2, y_2 = 3$", r"$y_2 = \boxed{3}$ and $y_1 = \boxed{2}$"),
            ("$y_1 = 2, y_2 = 2$", r"$y_1 = \boxed{2}$, $y_2 = \boxed{2}$"),
            ("$2, 3$", r"$$y_1 = \boxed{2}, \quad y_2 = \boxed{3}$$"),
            ("$y_1 = e^x, y_2 = e^{2x}$", "y_1 = \\boxed{e^x}\ny_2 = \\boxed{e^{2x}}"),
            (
                "$y_1 = 2, y_2 = 3$",
                r"\[\begin{aligned} y_1 &= \boxed{2} \\ y_2 &= \boxed{3} \end{aligned}\]",
            ),
            ("$x = 2$ or $x = 3$", r"$x_1 = \boxed{2}$, $x_2 = \boxed{3}$"),
            ("$(2, 3)$", r"$x = \boxed{2}, y = \boxed{3}$"),
            ("$x = 2, y = 3$", r"$x = \boxed{2}$ and $y = \boxed{3}$"),
            ("3", r"first $n_1 = \boxed{2}$ was wrong, so $n_2 = \boxed{3}$"),
            ("12", "$n = \\boxed{3}$\n\nso in total $m = \\boxed{12}$"),
        ],
        true,
    );
}

#[test]
fn left_hand_sides_that_name_a_value() {
    check(
        &[
            ("$T^*(x) = 3x$", "$3x$"),
            ("$3x$", "$T^*(x) = 3x$"),
            ("$T^*(x) = 3x$", r"\boxed{T^{*}(x) = 3x}"),
            ("$T^*(x_1, x_2) = (x_2, x_1)$", r"\boxed{(x_2, x_1)}"),
            (r"$E(Y|X) = \frac{X}{2}$", "$X/2$"),
            ("$X/2$", r"\boxed{E(Y|X) = \frac{X}{2}}"),
            (r"$\mathbb{E}[Y \mid X] = \frac{X}{2}$", r"\boxed{E(Y|X) = \frac{1}{2} X}"),
            ("$P(X = 2) = 0.3$", "0.3"),
            (r"$P(A|B) = \frac13$", r"\boxed{\frac13}"),
            ("$f(2) = 5$", "5"),
            (r"$\operatorname{Var}(X + Y) = 5$", "5"),
            (r"$f^{-1}(3) = 7$", "7"),
            (r"$\mathcal{L}\{f\}(s) = \frac{1}{s}$", r"$\frac1s$"),
            ("$x^* = 4$", "4"),
            (r"$\hat{\theta}(x) = \bar{x}$", r"$\bar{x}$"),
            ("$f(x) = 2x$", "$f(x) = x + x$"),
        ],
        true,
    );
}

#[test]
fn numbers_side_by_side_and_products() {
    check(
        &[
            ("1 2", "$1 2$"),
            ("1 2 3", r"\boxed{1\ 2\ 3}"),
            ("5 feet 3 inches", r"\boxed{5\text{ feet }3\text{ inches}}"),
            ("1 1/2", r"$1\frac{1}{2}$"),
            ("1 1/2", "Answer: 3/2"),
            ("1234", "$1 234$"),
            ("72", "$2^3 3^2$"),
            ("6", r"$2 \cdot 3$"),
            ("6", "$2(3)$"),
            ("6x", "$2x \\cdot 3$"),
            ("3/2", r"$\frac12 3$"),
            ("a + b", "$a+b$"),
            ("no solution", r"\boxed{\text{no  solution}}"),
        ],
        true,
    );
}

#[test]
fn words_in_any_case() {
    check(
        &[
            ("Paris", "Answer: paris"),
            ("Yes", r"\boxed{yes}"),
            ("no", r"\boxed{No}"),
            ("TRUE", r"\boxed{True}"),
            (r"\text{Even}", r"\boxed{even}"),
        ],
        true,
    );
}

#[test]
fn intervals_with_turned_brackets() {
    check(
        &[
            ("$[1,2[$", "$[1,2)$"),
            ("$]1,2[$", "$(1,2)$"),
            ("$(1,2)$", r"$\left]1;2\right[$"),
            (r"$]-\infty, 3]$", r"$(-\infty, 3]$"),
            (r"$(-\infty,1) \cup (2,\infty)$", r"$]-\infty,1[\, \cup\, ]2,\infty[$"),
            ("$x < 1$", r"$]-\infty,1[$"),
        ],
        true,
    );
}

#[test]
fn ratios() {
    check(
        &[
            ("$3:4:5$", "$6:8:10$"),
            ("$3:4$", r"$\frac34$"),
            (r"$\frac12:\frac13$", "$3:2$"),
            ("$1/2:1/3$", "$3:2$"),
            ("$x:y:z$", "$2x:2y:2z$"),
        ],
        true,
    );
}

#[test]
fn inequalities_with_and_or_or() {
    check(
        &[
            ("$1 < x \\le 2$", r"$x > 1$ and $x \le 2$"),
            ("$1 < x \\le 2$", r"\boxed{x > 1, x \le 2}"),
            ("$1 < x \\le 2$", r"\boxed{2 \ge x \text{ and } 1 < x}"),
            (r"x>1 and x<=2", r"$1<x\le2$"),
            (r"x<1 or x>3", r"\boxed{x>3 \text{ or } 1>x}"),
            (r"$x<1, x>3$", r"\boxed{x>3 \text{ or } x<1}"),
            (r"x<1 or x>3", r"$(-\infty,1)\cup(3,\infty)$"),
            (r"$|x| \ge 3$", r"\boxed{x \le -3 \text{ or } x \ge 3}"),
            (r"$|x| < 3$", r"\boxed{x > -3 \text{ and } x < 3}"),
            ("$x<3, y>2$", "$2<y$ and $3>x$"),
        ],
        true,
    );
}

#[test]
fn sets_with_conditions() {
    check(
        &[
            ("$(1,5)$", r"$\{x \mid x > 1 \text{ and } x < 5\}$"),
            ("$1 < x < 5$", r"\boxed{\{x \mid x > 1 \text{ and } x < 5\}}"),
            (r"$\{x \mid x < 1 \text{ or } x > 5\}$", r"$(-\infty,1) \cup (5,\infty)$"),
            (r"$\{x \mid x < 1 \text{ or } x > 5\}$", r"$\{x : 5 < x \text{ or } x < 1\}$"),
            (r"$(5,\infty)$", r"$\{x \mid x \in \mathbb{R}, x > 5\}$"),
            (r"$(5,\infty)$", r"$\{x \in \mathbb{R} \mid x > 5\}$"),
            (r"$\{x \in \mathbb{Z} \mid x > 5\}$", r"$\{n \in \mathbb{Z} : 5 < n\}$"),
            (r"$\{2k+1 \mid k \in \mathbb{Z}\}$", r"$\{1+2n : n \in \mathbb{Z}\}$"),
            (r"$\{(x,y) \mid x+y=1\}$", r"$\{(x,y) \mid y=1-x\}$"),
            (r"$k\pi \ (k \in \mathbb{Z})$", r"$\pi k, k \in \mathbb{Z}$"),
            (r"$x = k\pi + 1 \ (k\in\mathbb{Z})$", r"\boxed{x = 1 + k\pi \quad (k\in\mathbb{Z})}"),
        ],
        true,
    );
}

#[test]
fn units_and_markup_around_values() {
    check(
        &[
            ("5", "$5~\\text{cm}$"),
            ("5", "\\boxed{5~cm}"),
            ("x=5, y=3", "$x=5,~y=3$"),
            ("5", r"\boxed{€5}"),
            ("5", "$£5$"),
            ("€5", r"\boxed{5 \text{ euros}}"),
            ("5 m/s", r"\boxed{5\text{ m/s}}"),
            ("60", "Answer: 60 km/h"),
            ("60 mph", r"\boxed{60\text{ mi per hour}}"),
            (r"10\text{ N}", r"\boxed{10\text{ kg m/s}^2}"),
            (r"5\text{ W}", r"\boxed{5\text{ J/s}}"),
            (r"9.8\text{ N/kg}", r"\boxed{9.8\text{ m/s}^2}"),
            ("₹500", r"\boxed{500\text{ rupees}}"),
            ("10", r"\boxed{10 \text{ kg} \cdot \text{m/s}}"),
            (r"9.8 \text{ m/s}^2", r"$9.8\,\mathrm{m}/\mathrm{s}^2$"),
            ("60 mph", r"\boxed{60 \text{ miles per hour}}"),
            ("25", "Answer: 25°C"),
            (r"25^\circ C", r"\boxed{25^{\circ}\text{C}}"),
            ("3", r"\boxed{\color{red}{3}}"),
            ("3", r"Answer: \color{red}3"),
            ("3x", r"${\textcolor{blue}{3}}x$"),
            (r"$\frac{v}{s}$", "$v/s$"),
        ],
        true,
    );
}

#[test]
fn headings_are_no_answers() {
    check(
        &[
            ("5", "The answer is \\boxed{5}.\n\n#### Verification\n\n2+3 = 5, as expected."),
            ("5", "The answer is \\boxed{5}.\n\n#### Note\nNothing else."),
            ("5", "\\boxed{5}\n\n#### Check"),
            ("5", "\\boxed{5}\n\n#### Explanation 2\nfoo"),
            ("5", "#### Conclusion\n\nThe answer is 5."),
            ("5", "#### Final Answer\n5"),
            ("7", "#### Solution\nFirst 3, then 4. The total is 7."),
            ("7", "#### 1\nfoo\n\nso the total is 7."),
            ("7", "#### 1\nfoo\n#### 2\nbar\n\nso the total is 7."),
            ("2", "#### Step 1\nfoo 3\n#### Step 2\nbar\n\nThe answer is 2."),
            ("18", "#### 18\n\nThanks"),
            ("18", "#### 18\n\nQuestion: Tom has 5 apples."),
            ("18", "#### 18\n\n#### Note\nfoo"),
            ("1", "foo\n#### 1"),
            ("1", "One of them is left.\n#### 1\n\nQuestion: Tom has 5 apples."),
            ("1", "It is 3 - 2.\n#### 1\n\nCheck: 2 + 1 = 3."),
            ("7", "Plan:\n#### 1\nfoo\n#### 2\nbar\n\nso the total is 7."),
            ("7", "Plan:\n#### 1)\nfoo\n#### Step 2\nbar\n\nso the total is 7."),
            (r"$\sqrt{2}$", "#### sqrt(2)\n\nCheck: 2 > 1."),
            ("1", "#### sin(90°)\n\nCheck: 2 > 1."),
            ("5", "foo #### 4 #### 5"),
            ("18", "foo\n#### 18   \n\n   \n"),
            ("Paris", "It is in France.\n#### Paris"),
            ("B", "#### B\n\nIt fits."),
        ],
        true,
    );
}

#[test]
fn fractions_in_bold_text() {
    check(
        &[
            ("1/2", "The answer is **1/2**."),
            ("1/2", "**1/2**"),
            ("1/2", "The final answer is **1/2**."),
            ("1/2", "**Answer:** **1/2**"),
            ("1/2", "The answer is **1/2**.\n\n(1) is the first step."),
            ("7", "The answer is 7.\n\n(1) is the first step."),
            ("8", "It is 2**3"),
            ("8", "It is 2 ** 3"),
            ("15", "It is 3 * 5"),
            ("3", "There are 5\n**3** of them"),
            ("3", "The list:\n* 1\n* 2\n* 3"),
        ],
        true,
    );
}

#[test]
fn markup_and_currencies_around_plain_numbers() {
    check(
        &[
            ("45", r"It costs \$45."),
            ("45", r"The answer is \$45."),
            ("45", r"**\$45**"),
            ("45", r"Total = \$45"),
            ("45", "The answer is US$45"),
            ("5", "The answer is `5`."),
            ("5", "The answer is \"5\"."),
            ("5", "The answer is *5*."),
            ("5", "The answer is __5__."),
            ("5", "The answer is:5"),
            ("45", "The answer is (45)."),
            ("45", "The answer is ~45."),
            ("-3", "The temperature is −3."),
            ("-1234", "It is −1,234"),
        ],
        true,
    );
}

#[test]
fn names_that_end_in_a_are_no_markers() {
    check(
        &[
            ("7", "Team A: 3\nTeam B: 4\nThe answer is 7."),
            ("7", "Group A: 3\nGroup B: 4\nThe total is 7."),
            ("7", "**Store A:** 3 dollars\n**Store B:** 4 dollars\n\nHe pays **7** dollars."),
            ("9", "7*7=9,A:9"),
            ("7", "Q: ? A: 7"),
            ("7", "A: 7\nTeam A: 3"),
            ("7", "Q: 3+4\n**A:** 7"),
        ],
        true,
    );
    check(&[("3", "Team A: 3\nTeam B: 4\nThe answer is 7.")], false);
}

#[test]
fn text_after_the_thinking_counts() {
    check(
        &[
            ("5", "<think>maybe \\boxed{4}</think>\n\nThe answer is 5."),
            ("8", "<think>5 or 6</think>8"),
            ("8", "<think>5</think>**8**"),
            ("4", "<think>so \\boxed{4}</think>\n"),
            ("4", "<think>so \\boxed{4}"),
            ("4", "<think>5</think><answer>4</answer> or 6"),
        ],
        true,
    );
    check(&[("4", "<think>maybe \\boxed{4}</think>\n\nThe answer is 5.")], false);
    let with = |answer| Verifier { answer, ..Verifier::default() };
    let response = "<think>\\boxed{4}</think>The answer is 5.";
    assert!(with(AnswerIn::Response).is_correct(response, "4"));
    assert!(with(AnswerIn::AfterThink).is_correct(response, "5"));
    assert!(!with(AnswerIn::AfterThink).is_correct("5", "5"));
    assert!(with(AnswerIn::Tag).is_correct("<answer>5</answer> \\boxed{4}", "5"));
    assert!(!with(AnswerIn::Tag).is_correct("5", "5"));
    let mentioned = "<answer>4</answer> or <answer>5</answer> I used the <answer> tag.";
    let closed = "In <answer> tags: <answer>5</answer>, which </answer> closes.";
    for response in [mentioned, closed] {
        assert!(with(AnswerIn::Tag).is_correct(response, "5"), "{response}");
        assert!(is_correct(response, "5"), "{response}");
    }
    assert!(!with(AnswerIn::Tag).is_correct("</answer> 5 <answer>", "5"));
}

#[test]
fn percent_signs_may_be_left_out() {
    check(
        &[
            ("20", r"\boxed{20\%}"),
            ("20", "#### 20%"),
            ("20", "Answer: 20%"),
            ("20", "The answer is 20 percent."),
            ("25", r"$25\%$"),
            (r"20\%", r"\boxed{20}"),
            (r"20\%", "The answer is 20."),
            (r"20\%", r"\boxed{0.2}"),
            ("0.2", r"\boxed{20\%}"),
            ("1", r"\boxed{100\%}"),
            ("0", r"\boxed{0\%}"),
            (r"1\%", r"\boxed{1}"),
            ("2", r"\boxed{2\%}"),
        ],
        true,
    );
}

#[test]
fn units_with_the_names_of_functions_and_letters() {
    check(
        &[
            ("15", r"\boxed{15\text{ min}}"),
            ("15", r"\boxed{15\ \mathrm{min}}"),
            ("15", r"\boxed{15\text{ sec}}"),
            ("15", r"\boxed{15 min}"),
            ("15", "Answer: 15 sec."),
            ("15", r"\boxed{15\text{ m/sec}}"),
            ("15", "Answer: 15 in."),
            ("15", r"\boxed{15\text{ A}}"),
            ("15", r"\boxed{15\text{ Ω}}"),
            ("15", "#### 15 Pa"),
            ("15", "#### 15 kPa"),
            ("15", r"\boxed{15\text{ ¢}}"),
            (r"$2\sec x$", r"\boxed{\frac{2}{\cos x}}"),
            (r"$2\sec x$", r"\boxed{2\mathrm{sec}(x)}"),
            ("6", r"\boxed{2\min(3, 4)}"),
            ("6", r"\boxed{2\text{min}(3, 4)}"),
            ("A", r"\boxed{\text{A}}"),
        ],
        true,
    );
}

#[test]
fn rows_fonts_and_delimiters() {
    let column = r"\begin{pmatrix}1\\2\end{pmatrix}";
    check(
        &[
            (column, r"\boxed{\begin{pmatrix}1\\[4pt]2\end{pmatrix}}"),
            (column, r"\boxed{\begin{pmatrix}1\\[-0.5em]2\end{pmatrix}}"),
            (column, r"\boxed{\begin{pmatrix}1\\[2mm]2\end{pmatrix}}"),
            (column, r"\boxed{\begin{pmatrix}1\\*2\end{pmatrix}}"),
            (column, r"\boxed{\begin{pmatrix}1\cr 2\end{pmatrix}}"),
            (column, r"\boxed{\begin{pmatrix*}[r]1\\2\end{pmatrix*}}"),
            (r"\mathbb{Z}", r"\boxed{\mathbb Z}"),
            (r"\mathbb{R}", r"\boxed{\mathbb R}"),
            (r"\mathbb{R}", r"\boxed{\R}"),
            (r"\mathbb{R}", r"\boxed{\Bbb{R}}"),
            (r"\mathbf{x}", r"\boxed{\mathbf x}"),
            (r"\frac12", r"\boxed{\mathbf{\frac12}}"),
            (r"\frac12", r"\boxed{\boldsymbol{\frac12}}"),
            (r"\frac12", r"\boxed{\bm{\frac12}}"),
            ("2x+1", r"\boxed{\mathbf{2x+1}}"),
            ("(2x+1)^2", r"\boxed{\mathbf{(2x+1)}^2}"),
            (r"\frac12", r"\boxed{\textbf{1/2}}"),
            (r"\frac12", r"\boxed{\text{1/2}}"),
            ("(1,2)", r"\boxed{\text{(1,2)}}"),
            (r"\mathbb{Z}_4", r"Answer: $\mathbb{Z}_4$"),
            (r"\mathbb{Z}_4", r"**Final Answer:** $\mathbb{Z}_4$"),
            (r"\mathbb{Z}_4", r"Answer: \(\mathbb{Z}_4\)."),
            ("2, 3", "Answer: $2$ and $3$"),
            (r"\text{H}_2\text{O}", r"\boxed{\text{H}_2\text{O}}"),
        ],
        true,
    );
}

#[test]
fn remarks_in_text_after_values() {
    check(
        &[
            ("9.8", r"\boxed{9.8\text{ (m/s^2)}}"),
            ("5", r"\boxed{5\text{ (m^3)}}"),
            ("5", r"\boxed{5\text{ 1/s}}"),
            ("4.56", r"\boxed{4.56\text{ (3 s.f.)}}"),
            ("2", r"\boxed{x=2\text{ (2)}}"),
            ("1/2", r"\boxed{\frac{1}{2}\text{ (m^3)}}"),
            ("1/2", r"\boxed{x = \text{1/2}}"),
            ("x^{1/2}", r"\boxed{x^{\text{1/2}}}"),
            ("2(x+1)^2", r"\boxed{2\mathbf{(x+1)}^2}"),
        ],
        true,
    );
}

#[test]
fn letters_in_text_commands_after_numbers() {
    check(
        &[
            ("2A", r"\boxed{2\mathbf{A}}"),
            ("2A", r"\boxed{2\mathbf A}"),
            ("2A", r"\boxed{2\mathcal{A}}"),
            (r"2\mathbf{A}", r"\boxed{2\mathbf{A}}"),
            (r"3\mathbf{A}+\mathbf{B}", r"\boxed{\mathbf{B}+3\mathbf{A}}"),
            (r"3\text{A}", r"\boxed{3\text{A}}"),
            (r"3\text{A}", r"\boxed{3\text{ A}}"),
            ("15", r"\boxed{15\ \mathrm{A}}"),
            ("15", r"\boxed{15\,\mathrm{A}}"),
            ("15", r"\boxed{15~\text{A}}"),
            (r"15\text{ A}", r"\boxed{15}"),
        ],
        true,
    );
}

#[test]
fn brackets_around_plain_text() {
    check(
        &[
            ("18", "(hence (2*9 = 18))."),
            ("18", "(as above (3 + 15 = 18)) apples"),
            ("-18", "(as above (3 - 21 = -18)) degrees"),
            ("7", "The total is 7. One factor is (2x+1)."),
            ("45", "The cost is ($45)."),
            ("1234", "The answer is (1,234)."),
            ("1/2", "The answer is (1/2)."),
            ("-4", "The answer is: (-4)"),
        ],
        true,
    );
    check(&[("3.4", "The point is (3,4)."), ("15", "(as above (3 + 15 = 18)) apples")], false);
}
