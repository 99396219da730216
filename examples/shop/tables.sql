-- A table whose rows may move from one document to another says in its changes where they were: its replica identity
-- holds the columns that link it.
CREATE TABLE customers (
    id bigint PRIMARY KEY,
    full_name text NOT NULL,
    email text,
    tier text NOT NULL DEFAULT 'basic',
    created_at timestamptz NOT NULL DEFAULT now(),
    deleted_at timestamptz
);
CREATE TABLE profiles (
    customer_id bigint PRIMARY KEY REFERENCES customers,
    bio text,
    avatar_url text
);
CREATE TABLE addresses (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    city text NOT NULL,
    country text NOT NULL
);
CREATE TABLE products (
    id bigint PRIMARY KEY,
    sku text NOT NULL,
    name text NOT NULL,
    price numeric(12, 2) NOT NULL,
    colours text[],
    visible boolean NOT NULL DEFAULT true
);
CREATE TABLE tags (id bigint PRIMARY KEY, label text NOT NULL);
CREATE TABLE product_tags (
    product_id bigint REFERENCES products,
    tag_id bigint REFERENCES tags,
    PRIMARY KEY (product_id, tag_id)
);
CREATE TABLE orders (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    status text NOT NULL DEFAULT 'open',
    total numeric(12, 2),
    placed_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE order_lines (
    id bigint PRIMARY KEY,
    order_id bigint NOT NULL REFERENCES orders,
    product_id bigint NOT NULL REFERENCES products,
    quantity integer NOT NULL,
    unit_price numeric(12, 2) NOT NULL
);
CREATE INDEX ON product_tags (tag_id);
CREATE INDEX ON addresses (customer_id);
CREATE INDEX ON orders (customer_id);
CREATE INDEX ON order_lines (order_id);
CREATE INDEX ON order_lines (product_id);
CREATE UNIQUE INDEX addresses_identity ON addresses (id, customer_id);
CREATE UNIQUE INDEX orders_identity ON orders (id, customer_id);
CREATE UNIQUE INDEX order_lines_identity ON order_lines (id, order_id, product_id);
ALTER TABLE addresses REPLICA IDENTITY USING INDEX addresses_identity;
ALTER TABLE orders REPLICA IDENTITY USING INDEX orders_identity;
ALTER TABLE order_lines REPLICA IDENTITY USING INDEX order_lines_identity;
