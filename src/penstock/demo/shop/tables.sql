-- A table whose rows may move from one document to another says in its changes where they were: its replica identity
-- holds the columns that link it.
CREATE TABLE users (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    email text NOT NULL,
    city text NOT NULL,
    country text NOT NULL,
    joined date NOT NULL,
    visits integer NOT NULL DEFAULT 0,
    closed_at timestamptz
);
CREATE TABLE products (
    id bigint PRIMARY KEY,
    sku text NOT NULL UNIQUE,
    name text NOT NULL,
    description text NOT NULL,
    price numeric(10, 2) NOT NULL,
    stock integer NOT NULL,
    discontinued boolean NOT NULL DEFAULT false
);
CREATE TABLE tags (id bigint PRIMARY KEY, label text NOT NULL);
CREATE TABLE product_tags (
    product_id bigint REFERENCES products,
    tag_id bigint REFERENCES tags,
    PRIMARY KEY (product_id, tag_id)
);
CREATE TABLE orders (
    id bigint PRIMARY KEY,
    user_id bigint NOT NULL REFERENCES users,
    status text NOT NULL DEFAULT 'open',
    placed_at timestamptz NOT NULL
);
CREATE TABLE items (
    order_id bigint REFERENCES orders,
    line integer,
    product_id bigint NOT NULL REFERENCES products,
    quantity integer NOT NULL,
    price numeric(10, 2) NOT NULL,
    PRIMARY KEY (order_id, line)
);
CREATE TABLE reviews (
    id bigint PRIMARY KEY,
    product_id bigint NOT NULL REFERENCES products,
    user_id bigint NOT NULL REFERENCES users,
    stars smallint NOT NULL,
    body text NOT NULL,
    written_at timestamptz NOT NULL
);
CREATE INDEX ON product_tags (tag_id);
CREATE INDEX ON items (product_id);
CREATE UNIQUE INDEX orders_identity ON orders (user_id, id);
CREATE UNIQUE INDEX items_identity ON items (order_id, line, product_id);
CREATE UNIQUE INDEX reviews_identity ON reviews (product_id, user_id, id);
CREATE INDEX ON reviews (user_id);
ALTER TABLE orders REPLICA IDENTITY USING INDEX orders_identity;
ALTER TABLE items REPLICA IDENTITY USING INDEX items_identity;
ALTER TABLE reviews REPLICA IDENTITY USING INDEX reviews_identity;
