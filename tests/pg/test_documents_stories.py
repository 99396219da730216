"""What happens to documents, told change by change: every kind of relation, every operation, on real servers."""

from __future__ import annotations

import pytest

from penstock.contracts import Extent
from tests.fixtures.stories import Story

SHOP = """
CREATE TABLE customer (id bigint PRIMARY KEY, name text);
CREATE TABLE invoice (id bigint PRIMARY KEY, customer_id bigint, note text);
CREATE TABLE line (id bigint PRIMARY KEY, invoice_id bigint, item text);
CREATE TABLE stamp (id bigint PRIMARY KEY, line_id bigint, value int);
INSERT INTO customer VALUES (1, 'Ada'), (2, 'Ben');
INSERT INTO invoice VALUES (10, 1, 'a'), (20, 2, 'b');
INSERT INTO line VALUES (100, 10, 'x'), (200, 20, 'y');
INSERT INTO stamp VALUES (1000, 100, 1), (2000, 200, 2);
"""
CUSTOMERS = """
table: customer
fields:
  - keyword: name
  - has_many: invoices
    table: invoice
    foreign_key: customer_id
    fields:
      - keyword: note
      - has_many: lines
        table: line
        foreign_key: invoice_id
        fields:
          - keyword: item
          - has_many: stamps
            table: stamp
            foreign_key: line_id
            fields: [{integer: value}]
"""


def test_root_rows_come_change_and_go(story: Story) -> None:
    """E60: a new primary key removes the old document and writes the new one."""
    story.begin(SHOP, customers=CUSTOMERS)
    assert story.do("INSERT INTO customer VALUES (3, 'Cy')") == {"3"}
    assert story.documents["customers"]["3"] == {"name": "Cy", "invoices": []}
    assert story.do("UPDATE customer SET name = NULL WHERE id = 3") == {"3"}
    assert story.documents["customers"]["3"] == {"name": None, "invoices": []}
    assert story.do("UPDATE customer SET id = 4 WHERE id = 1") == {"1", "4"}
    assert story.documents["customers"]["4"] == {"name": "Ada", "invoices": []}
    assert story.do("UPDATE invoice SET customer_id = 4 WHERE id = 10") == {"1", "4"}
    assert [one["note"] for one in story.documents["customers"]["4"]["invoices"]] == ["a"]
    assert story.do("DELETE FROM customer WHERE id = 3", "INSERT INTO customer VALUES (3, 'Di')") == {"3"}
    assert story.do("DELETE FROM customer WHERE id IN (2, 3)") == {"2", "3"}
    assert set(story.documents["customers"]) == {"4"}


@pytest.mark.parametrize(
    ("table", "link", "parents", "value"),
    [
        ("invoice", "customer_id", (1, 2), "note = 'new'"),
        ("line", "invoice_id", (10, 20), "item = 'new'"),
        ("stamp", "line_id", (100, 200), "value = 9"),
    ],
)
def test_children_come_change_move_and_go(
    story18: Story, table: str, link: str, parents: tuple[int, int], value: str
) -> None:
    """E61: at depth one, two and three; a move and a delete are seen in the old parent and in the new one."""
    story18.begin(SHOP, customers=CUSTOMERS)
    first, second = parents
    assert story18.do(f"INSERT INTO {table} (id, {link}) VALUES (7, {first})") == {"1"}
    assert story18.do(f"UPDATE {table} SET {value} WHERE id = 7") == {"1"}
    assert story18.do(f"UPDATE {table} SET {link} = {second} WHERE id = 7") == {"1", "2"}
    assert story18.do(f"UPDATE {table} SET {link} = NULL WHERE id = 7") == {"2"}
    assert story18.do(f"UPDATE {table} SET {link} = {first}, id = 8 WHERE id = 7") == {"1"}
    assert story18.do(f"DELETE FROM {table} WHERE id = 8") == {"1"}
    moved = f"UPDATE {table} SET {link} = {second} WHERE {link} = {first}"
    assert story18.do(moved, f"DELETE FROM {table} WHERE {link} = {second}") == {"1", "2"}


def test_a_whole_branch_moves_and_changes_in_one_transaction(story18: Story) -> None:
    """E61: what hung below it is right at both ends."""
    story18.begin(SHOP, customers=CUSTOMERS)
    built = story18.do(
        "UPDATE stamp SET value = 5 WHERE id = 1000",
        "UPDATE line SET invoice_id = 20 WHERE id = 100",
        "UPDATE invoice SET customer_id = NULL WHERE id = 20",
        "UPDATE invoice SET customer_id = 1 WHERE id = 20",
        "DELETE FROM invoice WHERE id = 10",
    )
    assert built == {"1", "2"}
    assert story18.documents["customers"]["2"]["invoices"] == []
    lines = [{"item": "x", "stamps": [{"value": 5}]}, {"item": "y", "stamps": [{"value": 2}]}]
    assert story18.documents["customers"]["1"]["invoices"] == [{"note": "b", "lines": lines}]


LIBRARY = """
CREATE TABLE book (id int PRIMARY KEY, title text, author_id int, editor_id int, sequel_of int);
CREATE TABLE person (id int PRIMARY KEY, name text, mentor_id int);
CREATE TABLE tag (id int PRIMARY KEY, name text, grade int);
CREATE TABLE composite (book_id int, tag_id int, PRIMARY KEY (book_id, tag_id));
CREATE TABLE surrogate (id int PRIMARY KEY, book_id int, tag_id int);
INSERT INTO person VALUES (1, 'Ann', 2), (2, 'Bo', 1), (3, 'Cat', NULL);
INSERT INTO book VALUES (1, 'one', 1, 2, NULL), (2, 'two', 1, NULL, 1), (3, 'three', 3, 1, 2);
INSERT INTO tag VALUES (1, 'red', 5), (2, 'blue', 3), (3, 'green', NULL);
"""


@pytest.mark.parametrize("junction", ["composite", "surrogate"])
def test_links_and_far_rows_of_a_junction(story: Story, junction: str) -> None:
    """E62: made, removed and repointed on either side; each far row once, however often it is linked."""
    schema = f"""
table: book
fields:
  - many_to_many: tags
    table: tag
    through: {{table: {junction}, left_key: book_id, right_key: tag_id}}
    order_by: [{{column: name}}]
    fields: [{{keyword: name}}]
"""
    story.begin(LIBRARY, books=schema)
    keyed = junction == "surrogate"

    def link(book: int, tag: int) -> str:
        number = f"{book}{tag}, " if keyed else ""
        return f"INSERT INTO {junction} VALUES ({number}{book}, {tag})"

    def names(book: int) -> list[str]:
        return [tag["name"] for tag in story.documents["books"][str(book)]["tags"]]

    assert story.do(link(1, 1), link(1, 2)) == {"1"}
    assert names(1) == ["blue", "red"]
    assert story.do(f"UPDATE {junction} SET book_id = 2 WHERE tag_id = 2") == {"1", "2"}
    assert (names(1), names(2)) == (["red"], ["blue"])
    assert story.do(f"UPDATE {junction} SET tag_id = 3 WHERE book_id = 2") == {"2"}
    assert names(2) == ["green"]
    assert story.do("UPDATE tag SET name = 'grey' WHERE id = 3") == {"2"}
    assert names(2) == ["grey"]
    assert story.do("DELETE FROM tag WHERE id = 3") == {"2"}
    assert names(2) == []
    assert story.do(f"DELETE FROM {junction}") == {"1", "2"}
    assert names(1) == []
    if keyed:
        assert story.do("INSERT INTO surrogate VALUES (1, 3, 1), (2, 3, 1), (3, NULL, 1), (4, 3, NULL)") == {"3"}
        assert names(3) == ["red"]


def test_targets_change_and_go(story18: Story) -> None:
    """E63: every document that refers to them is built again; a reference to nothing is null."""
    author = "table: person\n    fields: [{keyword: name}]"
    story18.begin(LIBRARY, books=f"table: book\nfields:\n  - belongs_to: author\n    column: author_id\n    {author}")
    assert story18.do("UPDATE person SET name = 'Anna' WHERE id = 1") == {"1", "2"}
    assert story18.documents["books"]["2"] == {"author": {"name": "Anna"}}
    assert story18.do("DELETE FROM person WHERE id = 1") == {"1", "2"}
    assert story18.documents["books"]["2"] == {"author": None}
    assert story18.do("INSERT INTO person VALUES (1, 'Amy')") == {"1", "2"}
    assert story18.do("UPDATE book SET author_id = NULL WHERE id = 2") == {"2"}
    assert story18.do("UPDATE person SET id = 9 WHERE id = 3") == {"3"}
    assert story18.documents["books"]["3"] == {"author": None}


def test_one_table_in_many_roles(story18: Story) -> None:
    """E64: twice in a document, joined to itself, root here and child there, and in a circle."""
    mentor = "{belongs_to: mentor, column: mentor_id, table: person, fields: [{keyword: name}]}"
    books = f"""
table: book
fields:
  - belongs_to: author
    column: author_id
    table: person
    fields: [{{keyword: name}}, {mentor}]
  - {{belongs_to: editor, column: editor_id, table: person, fields: [{{keyword: name}}]}}
  - {{belongs_to: first, column: sequel_of, table: book, fields: [{{keyword: title}}]}}
  - {{has_many: sequels, table: book, foreign_key: sequel_of, fields: [{{keyword: title}}]}}
"""
    people = """
table: person
fields:
  - keyword: name
  - has_many: books
    table: book
    foreign_key: author_id
    fields:
      - {belongs_to: editor, column: editor_id, table: person, fields: [{keyword: name}]}
"""
    story18.begin(LIBRARY, books=books, people=people)
    story18.do("UPDATE person SET name = 'Anna' WHERE id = 1")
    one, three = story18.documents["books"]["1"], story18.documents["books"]["3"]
    assert one["author"] == {"name": "Anna", "mentor": {"name": "Bo"}}
    assert three["editor"] == {"name": "Anna"}
    story18.do("UPDATE person SET mentor_id = 3 WHERE id = 1", "UPDATE person SET name = 'Kit' WHERE id = 3")
    assert story18.documents["books"]["1"]["author"]["mentor"] == {"name": "Kit"}
    story18.do("UPDATE book SET sequel_of = 3, title = 'zwei' WHERE id = 2")
    assert story18.documents["books"]["1"]["sequels"] == []
    assert story18.documents["books"]["3"]["sequels"] == [{"title": "zwei"}]
    assert story18.documents["books"]["3"]["first"] == {"title": "zwei"}
    story18.do("UPDATE book SET sequel_of = id WHERE id = 1")
    assert story18.documents["books"]["1"]["first"] == {"title": "one"}
    story18.do("DELETE FROM book WHERE id = 3", "UPDATE person SET id = 30 WHERE id = 3")
    assert story18.documents["people"]["1"]["books"] == [{"editor": {"name": "Bo"}}, {"editor": None}]


def test_aggregates_after_deletes_and_moves(story: Story) -> None:
    """E65: direct and through a junction, filtered; what is empty counts 0, lists nothing and is null otherwise."""
    near = "table: book, foreign_key: author_id"
    far = "table: tag, through: {table: surrogate, left_key: book_id, right_key: tag_id}"
    people = f"""
table: person
fields:
  - {{count: count, {near}}}
  - {{ids: ids, {near}, element_type: integer}}
  - {{max: latest, {near}, column: title, value_type: keyword}}
  - {{count: sequels, {near}, filters: [{{column: sequel_of, op: is_not_null}}]}}
"""
    books = f"""
table: book
fields:
  - {{count: count, {far}}}
  - {{sum: sum, {far}, column: grade, value_type: long}}
  - {{avg: avg, {far}, column: grade}}
  - {{min: min, {far}, column: grade, value_type: integer}}
  - {{ids: ids, {far}, element_type: integer, filters: [{{column: grade, op: gte, value: 4}}]}}
"""
    story.begin(LIBRARY, people=people, books=books)
    assert story.documents["people"]["1"] == {"count": 2, "ids": [1, 2], "latest": "two", "sequels": 1}
    assert story.documents["people"]["2"] == {"count": 0, "ids": [], "latest": None, "sequels": 0}
    nothing = {"count": 0, "sum": None, "avg": None, "min": None, "ids": []}
    assert story.documents["books"]["1"] == nothing
    story.do("INSERT INTO surrogate VALUES (1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 1, 3)")
    assert story.documents["books"]["1"] == {"count": 3, "sum": 8, "avg": 4.0, "min": 3, "ids": [1]}
    story.do("UPDATE surrogate SET book_id = 2 WHERE id IN (1, 2)", "UPDATE tag SET grade = 4 WHERE id = 2")
    assert story.documents["books"]["1"] == {"count": 2, "sum": 4, "avg": 4.0, "min": 4, "ids": [2]}
    assert story.documents["books"]["2"] == {"count": 1, "sum": 5, "avg": 5.0, "min": 5, "ids": [1]}
    story.do("DELETE FROM surrogate WHERE book_id = 1", "UPDATE book SET author_id = 2 WHERE id = 2")
    assert story.documents["books"]["1"] == nothing
    assert story.documents["people"]["1"] == {"count": 1, "ids": [1], "latest": "one", "sequels": 0}
    assert story.documents["people"]["2"] == {"count": 1, "ids": [2], "latest": "two", "sequels": 1}


def test_what_a_truncate_means(story18: Story) -> None:
    """E66: for each index by itself; the rows written beside it are resolved as ever."""
    junction = "through: {table: composite, left_key: book_id, right_key: tag_id}"
    books = f"table: book\nfields:\n  - {{many_to_many: tags, table: tag, {junction}, fields: [{{keyword: name}}]}}"
    people = "table: person\nfields:\n  - {has_many: books, table: book, foreign_key: author_id, fields: []}"
    people = people.replace("fields: []", "fields: [{keyword: title}]")
    story18.begin(LIBRARY, books=books, people=people)
    for statement, of_books, of_people in [
        ("TRUNCATE composite", Extent.CHILDREN, Extent.NONE),
        ("TRUNCATE tag", Extent.CHILDREN, Extent.NONE),
        ("TRUNCATE book", Extent.ROOTS, Extent.CHILDREN),
        ("TRUNCATE person, composite", Extent.CHILDREN, Extent.ROOTS),
        ("TRUNCATE marks", Extent.NONE, Extent.NONE),
    ]:
        changes = story18.changes(statement, "INSERT INTO book VALUES (7, 'x', 1) ON CONFLICT DO NOTHING")
        assert story18.builder.truncated("books", changes) is of_books
        assert story18.builder.truncated("people", changes) is of_people
        if statement == "TRUNCATE book":
            assert list(story18.builder.affected("books", changes)) == [[("7",)]]


def test_soft_deletes_and_filters(story18: Story) -> None:
    """E67: set and cleared, entered and left, at the root and below; resolving looks at none of them."""
    tables = """
CREATE TABLE item (id int PRIMARY KEY, gone timestamptz, hidden boolean, kind text);
CREATE TABLE part (id int PRIMARY KEY, item_id int, size int, at date);
INSERT INTO item VALUES (1, NULL, false, 'a'), (2, NULL, NULL, 'b');
INSERT INTO part VALUES (1, 1, 5, '2026-01-01'), (2, 1, 50, NULL), (3, 1, 500, '2026-01-03');
"""
    gone = """
table: item
soft_delete: {column: gone, when: [{column: kind, op: neq, value: keep}]}
filters: [{any: [{column: kind, op: in, value: [a, keep]}, {raw: "length(kind) > 3 -- long"}]}]
fields:
  - has_many: parts
    table: part
    foreign_key: item_id
    filters: [{column: size, op: between, value: [1, 100]}]
    order_by: [{column: at, direction: desc}]
    limit: 1
    fields: [{integer: size}]
"""
    hidden = "table: item\nsoft_delete: {column: hidden}\nfields: [{keyword: kind}]"
    story18.begin(tables, gone=gone, hidden=hidden)
    assert story18.documents["gone"] == {"1": {"parts": [{"size": 5}]}}
    assert set(story18.documents["hidden"]) == {"1", "2"}
    story18.do("UPDATE item SET gone = now(), hidden = true WHERE id = 1")
    assert story18.documents == {"gone": {}, "hidden": {"2": {"kind": "b"}}}
    story18.do("UPDATE item SET kind = 'keep' WHERE id = 1")
    assert set(story18.documents["gone"]) == {"1"}
    story18.do("UPDATE item SET kind = 'long' WHERE id = 2", "UPDATE item SET hidden = false, gone = NULL WHERE id = 1")
    assert set(story18.documents["gone"]) == {"1", "2"}
    story18.do("UPDATE item SET kind = 'b' WHERE id = 2")
    assert set(story18.documents["gone"]) == {"1"}
    assert story18.do("UPDATE part SET size = 101 WHERE id = 1") == {"1"}
    assert story18.documents["gone"]["1"] == {"parts": [{"size": 50}]}
    story18.do("UPDATE part SET size = 1 WHERE id = 3")
    assert story18.documents["gone"]["1"] == {"parts": [{"size": 1}]}
    assert story18.do("DELETE FROM part WHERE id = 3") == {"1"}
    assert story18.documents["gone"]["1"] == {"parts": [{"size": 50}]}


def test_composite_keys_and_ids_that_need_care(story: Story) -> None:
    """E68: whatever the parts hold; an id of columns that are not the primary key."""
    tables = """
CREATE TABLE cell (sheet text, number int, body text NOT NULL UNIQUE, PRIMARY KEY (sheet, number));
CREATE TABLE note (id int PRIMARY KEY, sheet text, number int, said text);
INSERT INTO cell VALUES ('a|b', 1, 'x'), ('a', 1, 'y'), (E'q"\\\\ \\n é', 2, 'z'), ('', 3, 'w'), ('NULL', 4, '{1,2}');
"""
    notes = "  - {has_many: notes, table: note, foreign_key: [sheet, number], fields: [{keyword: said}]}"
    by_key = f"table: cell\nfields:\n  - keyword: body\n{notes}"
    story.begin(tables, by_key=by_key, by_body=f"table: cell\ndoc_id: [body]\nfields:\n  - keyword: sheet\n{notes}")
    assert set(story.documents["by_key"]) == {"a\\|b|1", "a|1", 'q"\\\\ \n é|2', "|3", "NULL|4"}
    assert set(story.documents["by_body"]) == {"x", "y", "z", "w", "{1,2}"}
    story.do('INSERT INTO note SELECT row_number() OVER (ORDER BY body COLLATE "C"), sheet, number, body FROM cell')
    assert story.documents["by_key"]['q"\\\\ \n é|2']["notes"] == [{"said": "z"}]
    assert story.documents["by_body"]["{1,2}"]["notes"] == [{"said": "{1,2}"}]
    assert story.do("UPDATE note SET sheet = 'a' WHERE id = 2") == {"a|1", "a\\|b|1", "x", "y"}
    assert story.do("UPDATE cell SET body = 'new' WHERE body = 'x'") == {"a\\|b|1", "x", "new"}
    assert story.do("UPDATE cell SET sheet = 'c' WHERE body = 'y'") == {"a|1", "c|1", "y"}
    assert story.documents["by_body"]["y"]["notes"] == []
    story.do("DELETE FROM cell")
    assert story.documents == {"by_key": {}, "by_body": {}}


def test_partitions_are_their_table(story18: Story) -> None:
    """E64, E66: under their own names, also those made since, at the root and below."""
    tables = """
CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE root_low PARTITION OF root FOR VALUES FROM (0) TO (10);
CREATE TABLE child (id int, root_id int, PRIMARY KEY (id, root_id)) PARTITION BY LIST (root_id);
CREATE TABLE child_rest PARTITION OF child DEFAULT;
INSERT INTO root VALUES (1, 'a');
"""
    count = "  - {count: children, table: child, foreign_key: root_id}"
    story18.begin(tables, roots=f"table: root\nfields:\n  - keyword: v\n{count}")
    assert story18.do("INSERT INTO child VALUES (1, 1)") == {"1"}
    assert story18.documents["roots"]["1"] == {"v": "a", "children": 1}
    story18.execute("CREATE TABLE root_high PARTITION OF root FOR VALUES FROM (10) TO (20)")
    assert story18.do("UPDATE root SET id = 11 WHERE id = 1") == {"1", "11"}
    story18.execute("CREATE TABLE child_11 PARTITION OF child FOR VALUES IN (11)")
    assert story18.do("INSERT INTO child VALUES (1, 11), (2, 11)") == {"11"}
    assert story18.documents["roots"]["11"] == {"v": "a", "children": 2}
    changes = story18.changes("TRUNCATE root_high")
    assert story18.builder.truncated("roots", changes) is Extent.SOME_ROOTS
    assert story18.builder.truncated("roots", story18.changes("TRUNCATE child_rest")) is Extent.CHILDREN
