use super::check;

#[test]
fn values() {
    check(
        &[
            ("9", "A:8"),
            ("", "A:"),
            ("", ""),
            ("9", "A:"),
            ("18", "18.5"),
            ("$\\frac12$", "$\\frac13$"),
            ("$0.3333$", "$1/3$"),
            ("$\\pi$", "3.14"),
            ("$1.6\\times 10^{-19}$", "0"),
            ("$1.6\\times 10^{-19}$", "$9.1\\times 10^{-31}$"),
            ("0", r"\boxed{0.0000001}"),
            ("0", r"\boxed{10^{-7}}"),
            ("$10^{20}$", "$10^{20}+1$"),
            ("$x+1$", "$x-1$"),
            ("$x+1$", "$y+1$"),
            ("$\\sqrt{x^2}$", "$x$"),
            ("$\\ln(x^2)$", "$2\\ln(x)$"),
            ("$2\\sin x$", "$\\sin 2x$"),
            ("$e^x$", "$e^{2x}$"),
            ("$f(x)$", "$g(x)$"),
            ("$\\text{even}$", "$\\text{odd}$"),
            ("$12:00$", "$1:00$"),
            ("$1/0$", "$2/0$"),
            ("$101_2$", "$110_2$"),
            ("the midpoints", "the end points"),
            (r"$\frac13$", r"$0.\overline{33}4$"),
            (r"$\frac13$", "$0.3$"),
            (r"$\frac{1}{3}$", r"$0.\overline{34}$"),
            (r"$\frac13$", "$0.34...$"),
            (r"$\sqrt{2}$", "$1.41...$"),
            ("1001", "$1.001$"),
            (r"$\frac12$", r"$\cos 60$"),
            (r"$\frac12$", r"$\cos 30^\circ$"),
        ],
        false,
    );
}

#[test]
fn collections() {
    check(
        &[
            ("$(1, 2)$", "$(2, 1)$"),
            ("$(1, 2)$", "$[1, 2]$"),
            ("$(1, 2)$", "$\\{1, 2\\}$"),
            ("$[0,1)$", "$[0,1]$"),
            ("$1, 2$", "$1, 2, 3$"),
            ("$1, 2$", "1"),
            ("$\\pm 3$", "3"),
            ("$[0,1] \\cup [2,3]$", "$[0,3]$"),
            (
                "$\\begin{pmatrix} 1 & 2 \\end{pmatrix}$",
                "$\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}$",
            ),
            (
                "$\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}$",
                "$\\begin{pmatrix} 2 \\\\ 1 \\end{pmatrix}$",
            ),
            ("$x=1, y=2$", "$x=2, y=1$"),
            ("12345", "$12, 345$"),
        ],
        false,
    );
}

#[test]
fn relations() {
    check(
        &[
            ("$x > 2$", "$x \\ge 2$"),
            ("$x > 2$", "$x < 2$"),
            ("$x > 2$", "$[2, \\infty)$"),
            ("$x = 1$", "$y = 1$"),
            ("$x + y = 1$", "$x + y = 2$"),
            ("$2x + 4y = 6$", "$y = 3 - x$"),
            ("$x + 2z = 1$", "1"),
            ("$-x > 2$", "$x > -2$"),
            ("$x^2 < 4$", "$(-2, 3)$"),
            ("$x > 3$", "$> 4$"),
            ("$x > 3$", "$< 3$"),
            (r"$x > 3$", r"$\geq 3$"),
            ("$x + y > 3$", "$> 3$"),
            ("$5$", "$> 5$"),
        ],
        false,
    );
}

#[test]
fn limits_sums_and_integrals() {
    check(
        &[
            (r"$\int_0^1 f(x)\,dx$", r"$\int_1^0 f(x)\,dx$"),
            (r"$\int_0^1 f(x)\,dx$", r"$\int_0^1 f(x)\,dt$"),
            (r"$\int_0^1 f(x)\,dx$", r"$\int_0^2 f(x)\,dx$"),
            (r"$\int_0^1 f(x)\,dx$", r"$\int f(x)\,dx$"),
            (r"$\int_0^1 f(x)\,dx$", r"$\int_0 f(x)\,dx$"),
            (r"$\int_0^1 f(x)\,dx$", r"$\int^1 f(x)\,dx$"),
            (r"$\int f(x)\,dx$", r"$\int f(t)\,dt$"),
            (r"$\int_0^1 xy\,dx$", r"$\int_0^1 xy\,dy$"),
            (r"$\int_0^1 xy\,dx$", r"$\int_0^1 x^2\,dx$"),
            (r"$\int_0^1 (x+1)\,dx$", r"$\int_0^1 x\,dx + 1$"),
            (r"$\int_0^1 x\,dx$", r"$\oint_0^1 x\,dx$"),
            (r"$\int_0^1\int_0^2 xy^2\,dx\,dy$", r"$\int_0^1\int_0^2 xy^2\,dy\,dx$"),
            (r"$\sum_{k=1}^n k$", r"$\sum_{k=0}^n k$"),
            (r"$\sum_{k=1}^n k$", r"$\sum_{k=1}^n n$"),
            (r"$\sum_{k=1}^n k$", r"$\sum_{j=1}^n k$"),
            (r"$\sum_{k=1}^n a_k$", r"$\sum_{j=1}^n a_k$"),
            (r"$\sum_{i=1}^n\sum_{j=1}^n i$", r"$\sum_{i=1}^n\sum_{j=1}^n j$"),
            (r"$\sum_{k=1}^n k$", r"$\prod_{k=1}^n k$"),
            (r"$\sum_{k=1}^\infty k$", r"$\sum_{k=1}^{-\infty} k$"),
            (r"$\lim_{x\to0} f(x)$", r"$\lim_{x\to1} f(x)$"),
            (r"$\lim_{x\to0} f(x)$", r"$\lim_{y\to0} f(x)$"),
            (r"$2\oint_C f$", r"$\oint_C f$"),
        ],
        false,
    );
}

#[test]
fn several_solutions_within_a_step_of_the_search() {
    check(
        &[
            (r"$(x-1)(x-1.001) \ge 0$", r"$(-\infty, \infty)$"),
            (r"$(x-1)(x-1.001) < 0$", r"$\emptyset$"),
            ("$f(x) > 2$", "$f(2x) > 2$"),
        ],
        false,
    );
    check(
        &[
            (r"$(x-1)(x-1.001) < 0$", "$(1, 1.001)$"),
            (r"$(x-1)^2 > 0$", r"$x \ne 1$"),
            (r"$x^2(x-3) \ge 0$", r"$\{0\} \cup [3, \infty)$"),
        ],
        true,
    );
}

#[test]
fn names_and_choices() {
    check(
        &[
            (r"\text{(A)}", r"\boxed{B}"),
            (r"\textbf{(B)}\ 12", r"\boxed{\textbf{(C)}\ 13}"),
            ("$(1; 2; 3)$", "$(3; 2; 1)$"),
            ("$(1; 2; 3)$", "$(1; 2)$"),
            ("$y_1 = 2, y_2 = 3$", r"$y_1 = \boxed{3}$ and $y_2 = \boxed{2}$"),
            ("$x = 2, y = 3$", r"$x = \boxed{3}$ and $y = \boxed{2}$"),
            ("$y_1 = 2, y_2 = 2$", r"\boxed{2}"),
            ("$E(Y|X) = X/2$", "$E(Y|X) = X$"),
            ("$E(Y|X) = X/2$", "$E(X|Y) = X/2$"),
            ("$P(X = 2) = 0.3$", "$P(X = 3) = 0.3$"),
            ("$f(2) = 5$", "2"),
            ("$x(x + 1) = 12$", "12"),
            ("$2x = 10$", "10"),
            ("$T^*(x) = 3x$", "$T^*(x) = 2x$"),
        ],
        false,
    );
}

#[test]
fn commas_within_brackets() {
    check(
        &[
            ("1234", "$(1,234)$"),
            ("1234", r"\boxed{\left(1,234\right)}"),
            ("1234", "$[1,234]$"),
            ("1234", r"$\{1,234\}$"),
            ("1234", "Answer: (1,234)"),
            ("$(1,234)$", "1234"),
            ("$(1,234,567)$", "1234567"),
            ("$(1,234,567)$", "$(1234, 567)$"),
            (r"$\{1,234\}$", r"$\{1234\}$"),
            ("$[1,234]$", "1234"),
            ("$-1234$", "$(-1,234)$"),
        ],
        false,
    );
    check(
        &[
            ("$(1,234)$", "$(1, 234)$"),
            ("$[1,234]$", "$[1, 234]$"),
            (r"$\{1,234\}$", r"$\{234, 1\}$"),
            ("$(1234, 5678)$", "$(1,234, 5,678)$"),
            ("$(1234, 5)$", "$(1,234; 5)$"),
            ("1234", r"\boxed{1,234}"),
            ("1234", r"\(1,234\)"),
            (r"$\frac{1234}{5}$", r"$\frac{1,234}{5}$"),
            ("1234", r"$\text{1,234}$"),
        ],
        true,
    );
}

#[test]
fn named_values_in_another_order() {
    check(
        &[
            ("p=3,q=4", "$(4,3)$"),
            ("p=3,q=4", "$4,3$"),
            ("p=3, q=4", "Answer: 4 and 3"),
            ("p=3, q=4", "$(4;3)$"),
            ("p=3,q=4", r"$\{3,4\}$"),
            ("p=3,q=4", r"$\{4,3\}$"),
            ("p=3,q=4", "$(q,p)=(3,4)$"),
            ("$(p,q)=(3,4)$", "$q=3,p=4$"),
            ("$(p,q)=(3,4)$", "$(q,p)=(3,4)$"),
            ("$(p,q)=(3,4)$", "$(4,3)$"),
            ("$(p,q)=(3,4)$", r"\{3,4\}"),
            ("$(x,y,z)=(1,2,3)$", "$(1,3,2)$"),
            ("$x=1, y=2, z=3$", "$3, 2, 1$"),
            ("$x_1=3, x_2=4$", "$(4,3)$"),
            ("$a=1, b=2$", "$c=1, d=2$"),
            ("$a=1, b=2$", "$1$"),
            ("$a=1, b=2$", "$1, 2, 3$"),
        ],
        false,
    );
    check(
        &[
            ("p=3,q=4", "$(3,4)$"),
            ("p=3,q=4", "$3,4$"),
            ("p=3,q=4", "Answer: 3 and 4"),
            ("p=3,q=4", "$q=4,p=3$"),
            ("p=3,q=4", "$(p,q)=(3,4)$"),
            ("p=3,q=4", "$(q,p)=(4,3)$"),
            ("$(p,q)=(3,4)$", "$p=3,q=4$"),
            ("$(p,q)=(3,4)$", "$q=4,p=3$"),
            ("$(p,q)=(3,4)$", "$(q,p)=(4,3)$"),
            ("$(p,q)=(3,4)$", "$(3,4)$"),
            ("$x_1=3, x_2=4$", "$4,3$"),
            ("$x=3, x=4$", r"$\{4,3\}$"),
            ("$x=3$ or $x=4$", "$4,3$"),
        ],
        true,
    );
}

#[test]
fn numbers_side_by_side() {
    check(
        &[
            ("12", "$1 2$"),
            ("12", r"\boxed{1 2}"),
            ("12", "Answer: 1 2"),
            ("12", r"\boxed{1\ 2}"),
            ("12", r"\boxed{1{2}}"),
            ("2", r"\boxed{1 2}"),
            ("6", "$2 3$"),
            ("6", "$2{3}$"),
            ("6", r"$2\,3$"),
            ("24", "$2 3 4$"),
            ("1.5", "$1. 5$"),
            ("1.2", r"\boxed{1 .2}"),
            ("12.5", "$1 2.5$"),
            ("1234", "$12 34$"),
            ("1234", "Answer: 1, 234"),
            ("(1, 23)", "$(1, 2 3)$"),
            (r"\frac{12}{5}", r"\boxed{\frac{1 2}{5}}"),
            (r"\sqrt{12}", r"\boxed{\sqrt{1 2}}"),
            ("x^{12}", r"\boxed{x^{1 2}}"),
            ("11/2", "$1 1/2$"),
            ("1 1/2", "$11/2$"),
            ("15", "$5$ feet $3$ inches"),
            ("15", "Answer: 5 feet 3 inches"),
            ("15", r"\boxed{5\text{ feet }3\text{ inches}}"),
        ],
        false,
    );
}

#[test]
fn brackets_ratios_and_conjunctions() {
    check(
        &[
            ("$]1,2[$", "$[1,2]$"),
            ("$(1,2)$", "$]1,2]$"),
            ("$5$", "$]5[$"),
            ("$12$", "$]12[$"),
            ("$3:4:5$", "$3:5:4$"),
            ("$3:4:5$", r"$\frac{3}{20}$"),
            ("$1/2:1/3$", r"$\frac16$"),
            (r"$1 < x \le 2$", r"\boxed{x > 1 \text{ or } x \le 2}"),
            ("x<1 or x>3", r"\boxed{x<1 \text{ and } x>3}"),
            (r"x<1 and x>3", r"\boxed{x<1 \text{ or } x>3}"),
            ("$x>1$", r"\boxed{x>1 \text{ and } x>3}"),
            ("$x>3$", r"\boxed{x>1 \text{ or } x>3}"),
            ("Yes", r"\boxed{no}"),
            ("$p ∧ q$", "$p ∨ q$"),
            ("Paris", "Answer: London"),
            ("ABC", r"\boxed{abc}"),
        ],
        false,
    );
    let lax = super::super::Verifier { strict: false, ..super::super::Verifier::default() };
    assert!(!lax.is_correct(r"\boxed{\text{odd}}", r"\text{even}"));
    assert!(!lax.is_correct("Answer: London", "Paris"));
}

#[test]
fn units() {
    check(
        &[
            ("5 cm", r"\boxed{5 km}"),
            ("5 cm", "Answer: 5 km"),
            (r"$5\text{ cm}$", r"$5\text{ m}$"),
            (r"$5\text{ m}$", r"\boxed{5\ \mathrm{kg}}"),
            ("5 hours", r"\boxed{5\text{ minutes}}"),
            (r"\$5", "Answer: 5 cents"),
            ("5 miles north", "Answer: 5 km south"),
        ],
        false,
    );
    check(
        &[
            ("5 cm", r"\boxed{5}"),
            ("5", r"\boxed{5\text{ cm}}"),
            ("5 cm", r"\boxed{5\text{ centimetres}}"),
            (r"$12\text{ cm}^2$", r"\boxed{12 \text{ square centimeters}}"),
            (r"$5\text{ m}$", "Answer: 5 meters"),
            ("5 hours", r"\boxed{5\text{ h}}"),
            (r"\$5", "Answer: 5 dollars"),
            ("5 dollars", r"\boxed{\$5}"),
            ("60 mph", "Answer: 60 miles per hour"),
            (r"$60\text{ km/h}$", r"\boxed{60\text{ kilometers per hour}}"),
            ("$5m$", r"\boxed{5 \cdot m}"),
            ("$3s + 2m$", r"\boxed{2m + 3s}"),
            ("5 students", r"\boxed{5\text{ people}}"),
            (r"5 feet", r"\boxed{5\text{ ft}}"),
        ],
        true,
    );
}

#[test]
fn sets_with_conditions() {
    check(
        &[
            ("$1 < x < 5$", r"$\{x \mid x > 1 \text{ or } x < 5\}$"),
            (r"$\{x \mid x < 1 \text{ or } x > 5\}$", r"$\{x \mid x < 1 \text{ and } x > 5\}$"),
            (r"$\{2k+1 \mid k \in \mathbb{Z}\}$", r"$\{2k \mid k \in \mathbb{Z}\}$"),
            (r"$\{2k+1 \mid k \in \mathbb{Z}\}$", r"$\{2k+1 \mid k \in \mathbb{N}\}$"),
            (r"$\{(x,y) \mid x+y=1\}$", r"$\{(x,y) \mid x+2y=1\}$"),
            (r"$(1,\infty)$", r"$\{2x \mid x > 1\}$"),
            (r"$\{x \in \mathbb{Z} \mid -2<x<3\}$", "$(-2,3)$"),
            (r"$\{x \in \mathbb{Z} \mid x > 5\}$", r"$\{x \in \mathbb{N} \mid x > 5\}$"),
            (r"$(5,\infty)$", r"$\{x \mid x \in \mathbb{Z}, x > 5\}$"),
            (r"$k\pi \ (k \in \mathbb{Z})$", r"$k\pi \ (k \in \mathbb{N})$"),
            (r"$k\pi \ (k \in \mathbb{Z})$", r"$2k\pi \ (k \in \mathbb{Z})$"),
        ],
        false,
    );
}

#[test]
fn units_of_several_parts() {
    check(
        &[
            (r"5 \text{ m/s}", r"\boxed{5\,\mathrm{km/h}}"),
            ("5 m/s", "Answer: 5 km/h"),
            ("60 mph", r"\boxed{60 \text{ km/h}}"),
            ("25°C", "Answer: 25°F"),
            (r"25^\circ C", r"\boxed{25^{\circ}\text{F}}"),
            ("€5", r"\boxed{\$5}"),
            (r"\$500", r"\boxed{¥500}"),
            (r"\$500", r"\boxed{500\text{ rupees}}"),
            ("60 mph", r"\boxed{60\text{ km per hour}}"),
            ("5", "Answer: 5~3"),
            ("p", r"\boxed{~p}"),
        ],
        false,
    );
}

#[test]
fn headings_are_no_answers() {
    check(
        &[
            ("4", "The answer is \\boxed{5}.\n\n#### Verification\n\n2+2 = 4"),
            ("Check", "\\boxed{5}\n\n#### Check"),
            ("1", "#### 1\nfoo\n\nso the total is 7."),
            ("5", "#### 18\n\nQuestion: Tom has 5 apples."),
            ("5", "One of them is left.\n#### 1\n\nQuestion: Tom has 5 apples."),
            ("1", "Plan:\n#### 1\nfoo\n#### 2\nbar\n\nso the total is 7."),
            ("5", "\\boxed{5}\n#### 6"),
        ],
        false,
    );
}

#[test]
fn parts_of_plain_answers() {
    check(
        &[
            ("1", "The answer is **1/2**."),
            ("2", "The answer is **1/2**."),
            ("1", "**Answer:** **1/2**"),
            ("125", "There are 5\n**3** of them"),
            ("3", "The temperature is −3."),
            ("30", "It is 12:30"),
            ("5", "It is x*5"),
            ("5", "It is x_5"),
            ("2", "The answer is 45 by equation (2)."),
            ("2", "The answer (2) is 45."),
        ],
        false,
    );
}

#[test]
fn percentages() {
    check(
        &[
            ("20", r"\boxed{30\%}"),
            ("20", r"\boxed{0.2}"),
            (r"20\%", r"\boxed{2}"),
            (r"20\%", r"\boxed{2000}"),
            ("0.5", r"\boxed{0.5\%}"),
            (r"0.5\%", r"\boxed{0.5}"),
            (r"20\%", r"\boxed{2000\%}"),
            (r"20\text{ cm}", r"\boxed{20\%}"),
            (r"20\%", r"\boxed{20\text{ cm}}"),
            ("20 dollars", "Answer: 20%"),
            ("1", r"\boxed{1\%}"),
        ],
        false,
    );
}

#[test]
fn units_with_the_names_of_functions_and_letters() {
    check(
        &[
            (r"15\text{ min}", r"\boxed{15\text{ sec}}"),
            (r"15\text{ min}", r"\boxed{15\text{ hours}}"),
            ("16", r"\boxed{15\text{ min}}"),
            ("15 cm", "Answer: 15 in."),
            ("2", r"\boxed{2\mathrm{sec}(x)}"),
            ("15", r"\boxed{15A}"),
        ],
        false,
    );
}

#[test]
fn rows_fonts_and_delimiters() {
    let column = r"\begin{pmatrix}1\\2\end{pmatrix}";
    check(
        &[
            (column, r"\boxed{\begin{pmatrix}1\\[4pt]3\end{pmatrix}}"),
            (column, r"\boxed{\begin{pmatrix}1 & 2\end{pmatrix}}"),
            (r"\mathbb{Z}", r"\boxed{\mathbb R}"),
            (r"\mathbb{Z}", r"\boxed{Z}"),
            (r"\frac12", r"\boxed{\mathbf{\frac13}}"),
            ("1", r"\boxed{\text{1/2}}"),
            ("(2,1)", r"\boxed{\text{(1,2)}}"),
            (r"\mathbb{Z}_4", r"Answer: $\mathbb{Z}_5$"),
        ],
        false,
    );
}

#[test]
fn letters_in_text_commands_after_numbers() {
    check(
        &[
            (r"2\mathbf{A}", r"\boxed{2}"),
            (r"2\mathcal{A}", r"\boxed{2}"),
            (r"2\mathbf A", r"\boxed{2}"),
            (r"3\mathbf{A}+\mathbf{B}", r"\boxed{3+B}"),
            (r"3\text{A}", "3"),
            ("3", r"\boxed{3\text{ A}x}"),
        ],
        false,
    );
}

#[test]
fn multiples_of_units() {
    check(
        &[
            ("5 MPa", "#### 5 kPa"),
            ("5 MW", "#### 5 kW"),
            ("2 J", "#### 2 kJ"),
            ("5 m", "Answer: 5 nm"),
            ("5 mV", "Answer: 5 mA"),
            (r"5\text{ MPa}", r"\boxed{5\text{ kPa}}"),
            (r"15\text{ V}", r"\boxed{15\text{ A}}"),
            (r"15\text{ A}", r"\boxed{15\text{ mA}}"),
        ],
        false,
    );
    check(
        &[
            ("5 kPa", r"\boxed{5\text{ kPa}}"),
            ("5 kPa", "#### 5"),
            ("5 kW", r"\boxed{5\text{ kilowatts}}"),
            (r"5\text{ kW}", r"\boxed{5\text{ kJ/s}}"),
            (r"15\text{ A}", r"\boxed{15\text{ amperes}}"),
            (r"15\text{ A}", r"\boxed{15\ \mathrm{A}}"),
            ("A", r"\boxed{\text{A}}"),
            (r"\textbf{(A)}\ 12", r"\boxed{12\text{ cm}}"),
        ],
        true,
    );
}
