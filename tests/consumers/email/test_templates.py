"""Templates: parts of a message, escaped where it is HTML, strict about what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pytest
from jinja2 import DictLoader

from consumers.email.message import Message
from consumers.email.templates import Parts, Templates
from consumers.email.topics import Emails
from outbox.errors import ConfigurationError
from outbox.gateway import Unrenderable


def templates(**files: str) -> Templates:
    """Templates of these texts; the first underscore of a name is its first dot."""
    return Templates(DictLoader({name.replace("_", "."): text for name, text in files.items()}))


def test_the_parts_are_rendered_and_only_html_is_escaped() -> None:
    """Subject, text and HTML of one message."""
    found = templates(
        order_subject_txt="Order of {{ name }}\n",
        order_txt="Dear {{ name }},\n{% for line in lines %}\n- {{ line }}\n{% endfor %}\nBye",
        order_html="<p>{{ name }}</p>",
    ).render("order", {"name": "<Jane> & Co", "lines": ["tea", "jam"]})
    assert found == Parts(
        subject="Order of <Jane> & Co",
        text="Dear <Jane> & Co,\n- tea\n- jam\nBye",
        html="<p>&lt;Jane&gt; &amp; Co</p>",
    )


def test_html_and_subject_may_be_left_out() -> None:
    """Only the text is needed."""
    assert templates(order_txt="Hi").render("order", {}) == Parts("", "Hi", None)


def test_the_text_must_be_there() -> None:
    """A wrong name is an error."""
    with pytest.raises(jinja2.TemplateNotFound):
        templates(order_html="<p>").render("order", {})


def test_an_include_that_isnt_there_is_an_error() -> None:
    """It is not taken for a left-out part."""
    with pytest.raises(jinja2.TemplateNotFound):
        templates(order_txt="Hi", order_html="{% include 'frame.html' %}").render("order", {})


@pytest.mark.parametrize(
    "text", ["{{ nobody }}", "{{ order.nothing }}", "{% if nobody %}{% endif %}"]
)
def test_what_is_missing_is_an_error(text: str) -> None:
    """No e-mail says "Dear ,"."""
    with pytest.raises(jinja2.UndefinedError):
        templates(order_txt=text).render("order", {"order": {}})


@pytest.mark.parametrize("text", ["{{ [1, 2, 3] | random }}", "{{ lipsum() }}"])
def test_no_dice_are_offered(text: str) -> None:
    """A repeat after a crash would render another text."""
    with pytest.raises(jinja2.TemplateError):
        templates(order_txt=text).render("order", {})


def test_templates_are_found_in_a_folder(tmp_path: Path) -> None:
    """Given as a Path."""
    (tmp_path / "order.txt").write_text("Hi {{ name }}")
    assert Emails(templates=tmp_path).template("order", name="Jane").text == "Hi Jane"


def test_templates_are_found_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given as "package:folder"."""
    (tmp_path / "little_shop" / "texts").mkdir(parents=True)
    (tmp_path / "little_shop" / "__init__.py").touch()
    (tmp_path / "little_shop" / "texts" / "order.txt").write_text("Hi")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Emails(templates="little_shop:texts").template("order").text == "Hi"


@pytest.mark.parametrize(
    "place", ["no_such_package:templates", "consumers.email:nowhere", "", Path("nowhere")]
)
def test_a_place_that_isnt_there_is_refused_at_import(place: Any) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigurationError, match=r"^templates: "):
        Emails(templates=place)


def test_templates_that_were_never_given_are_missed() -> None:
    """With what to write."""
    with pytest.raises(ConfigurationError, match=r"give Emails\(templates="):
        Emails().template("order")


def test_a_failing_template_is_named_with_its_line(tmp_path: Path) -> None:
    """The dead job says where, and quotes nothing of the payload."""
    (tmp_path / "order.txt").write_text("Hi\n{{ order.total }}\n")
    emails = Emails(templates=tmp_path)

    @emails.topic("email.order")
    def order_confirmation(order: dict[str, Any]) -> Message:
        parts = emails.template("order", order=order)
        return Message(order["email"], "Order", parts.text)

    with pytest.raises(Unrenderable) as caught:
        emails.render("email.order", {"email": "jane@example.com"})
    assert str(caught.value) == ("order_confirmation raised UndefinedError (order.txt line 2)")
